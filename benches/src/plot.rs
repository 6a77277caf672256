//! Plots of tables as SVG.

use crate::report::{whole, Table};
use plotters::coord::ranged1d::SegmentValue;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Colours that people with any colour vision can tell apart (Okabe and Ito), the module's own first.
const COLOURS: [u32; 9] =
    [0x0072b2, 0xe69f00, 0x009e73, 0xcc79a7, 0x56b4e9, 0xd55e00, 0x7f7f7f, 0x8c6d31, 0x000000];
const OTHERS: RGBColor = RGBColor(0x9a, 0xa5, 0xb1);
const FAINT: RGBColor = RGBColor(0xd8, 0xde, 0xe4);
const FONT: (&str, i32) = ("sans-serif", 13);
const WIDTH: u32 = 960;
/// From one bar to the next.
const BAR_STEP: usize = 32;

/// Only what cannot be written fails, and a text can be.
type Drawn = Result<(), Box<dyn std::error::Error>>;
type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// How a column of a table is drawn.
pub enum Plot {
    None,
    /// Bars below each other, of the rows that begin with these cells.
    Bars(&'static [&'static str], &'static str),
    /// Panels beside each other, for each first cell one; in each, lines over the second cells, for each third cell one.
    Lines(&'static str),
}

/// With the title above and the caption below.
pub fn svg(title: &str, plot: &Plot, table: &Table, caption: &str) -> String {
    let mut svg = String::new();
    draw(&mut svg, title, plot, table, caption).expect("a text can be written");
    svg
}

fn draw(svg: &mut String, title: &str, plot: &Plot, table: &Table, caption: &str) -> Drawn {
    const TITLE: usize = 60;
    const LINE: usize = 15;
    const LINE_LETTERS: usize = 160;
    let height = TITLE
        + match plot {
            Plot::Bars(group, column) => BAR_STEP * table.numbers(group, column).len(),
            _ => 340,
        };
    let lines = textwrap::wrap(caption, LINE_LETTERS);
    let size = (WIDTH, (height + 30 + LINE * lines.len()) as u32);
    let canvas = SVGBackend::with_string(svg, size).into_drawing_area();
    canvas.fill(&WHITE)?;
    let (above, below) = canvas.titled(title, ("sans-serif", 19))?.split_vertically(height as u32);
    match plot {
        Plot::Bars(group, column) => draw_bars(&above, &table.numbers(group, column))?,
        Plot::Lines(column) => draw_lines(&above, table, column)?,
        Plot::None => {}
    }
    for (line, y) in lines.iter().zip((0..).step_by(LINE)) {
        below.draw(&Text::new(line.as_ref(), (10, y), ("sans-serif", 11)))?;
    }
    Ok(canvas.present()?)
}

fn draw_bars(canvas: &Canvas, bars: &[(String, f64)]) -> Drawn {
    const LEFT: i32 = 250;
    const LONGEST: f64 = 450.0;
    let most = most(bars);
    for ((label, value), y) in bars.iter().zip((20..).step_by(BAR_STEP)) {
        let end = LEFT + (value / most * LONGEST).max(1.0) as i32;
        let fill = if label.starts_with("TB.") { colour(0).filled() } else { OTHERS.filled() };
        canvas.draw(&Rectangle::new([(LEFT, y - 10), (end, y + 10)], fill))?;
        let shown = if value.fract() == 0.0 { whole(value) } else { value.to_string() };
        text(canvas, label, (LEFT - 10, y), HPos::Right)?;
        text(canvas, &shown, (end + 8, y), HPos::Left)?;
    }
    Ok(())
}

fn draw_lines(canvas: &Canvas, table: &Table, column: &str) -> Drawn {
    const LEGEND: u32 = 250;
    let (drawn, legend) = canvas.split_horizontally(WIDTH - LEGEND);
    let panels = table.next_cells(&[]);
    for (area, title) in drawn.split_evenly((1, panels.len())).iter().zip(&panels) {
        let places = table.next_cells(&[title]);
        let points = places.iter().map(|place| table.numbers(&[title, place], column));
        draw_panel(area, title, &places, &points.collect::<Vec<_>>(), most(&table.numbers(&[], column)))?;
    }
    let names = table.next_cells(&[&panels[0], &table.next_cells(&[&panels[0]])[0]]);
    for ((number, name), y) in names.iter().enumerate().zip((60..).step_by(26)) {
        legend.draw(&PathElement::new([(14, y), (36, y)], stroke(number)))?;
        text(&legend, name, (46, y), HPos::Left)?;
    }
    Ok(())
}

/// At each place the point of each line.
fn draw_panel(
    area: &Canvas,
    title: &str,
    places: &[String],
    points: &[Vec<(String, f64)>],
    most: f64,
) -> Drawn {
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 14))
        .x_label_area_size(30)
        .y_label_area_size(64)
        .build_cartesian_2d((0..places.len() - 1).into_segmented(), 0.0..most * 1.05)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(FAINT)
        .axis_style(FAINT)
        .x_label_formatter(&|place| match place {
            SegmentValue::CenterOf(place) => places.get(*place).cloned().unwrap_or_default(),
            _ => String::new(),
        })
        .y_label_formatter(&|value| whole(value))
        .draw()?;
    for line in 0..points[0].len() {
        let points = points.iter().enumerate();
        let points = points.map(|(place, at_place)| (SegmentValue::CenterOf(place), at_place[line].1));
        chart.draw_series(LineSeries::new(points, stroke(line).filled()).point_size(3))?;
    }
    Ok(())
}

fn most(numbers: &[(String, f64)]) -> f64 {
    numbers.iter().map(|(_, number)| *number).fold(f64::MIN_POSITIVE, f64::max)
}

fn text(canvas: &Canvas, text: &str, at: (i32, i32), side: HPos) -> Drawn {
    let style = FONT.into_text_style(canvas).pos(Pos::new(side, VPos::Center));
    Ok(canvas.draw(&Text::new(text, at, style))?)
}

/// Of lines, the first of which is the module's.
fn stroke(line: usize) -> ShapeStyle {
    colour(line).stroke_width(if line == 0 { 3 } else { 2 })
}

fn colour(line: usize) -> RGBColor {
    let [_, red, green, blue] = COLOURS[line % COLOURS.len()].to_be_bytes();
    RGBColor(red, green, blue)
}
