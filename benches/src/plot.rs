//! Plots of tables as SVG.

use crate::table::{whole, Plot, Table};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::path::Path;

/// Colours that people with any colour vision can tell apart (Okabe and Ito), the module's own first.
const COLOURS: [u32; 10] =
    [0x0072b2, 0xe69f00, 0x009e73, 0xcc79a7, 0x56b4e9, 0xd55e00, 0x7f7f7f, 0x8c6d31, 0x000000, 0x882255];
const OTHERS: RGBColor = RGBColor(0x9a, 0xa5, 0xb1);
const FAINT: RGBColor = RGBColor(0xd8, 0xde, 0xe4);
const WIDTH: u32 = 960;
/// From one bar to the next.
const BAR_STEP: u32 = 32;

/// Only what cannot be written fails.
type Drawn = Result<(), Box<dyn std::error::Error>>;
type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Writes a file, with the title above and the caption below.
pub fn draw(file: &Path, title: &str, plot: &Plot, table: &Table, caption: &str) -> Drawn {
    const TITLE: u32 = 40;
    const CAPTION: u32 = 20;
    let height = match plot {
        Plot::Bars(_, group, column) => BAR_STEP * table.numbers(group, column).len() as u32,
        _ => 340,
    };
    let canvas = SVGBackend::new(file, (WIDTH, TITLE + height + CAPTION)).into_drawing_area();
    canvas.fill(&WHITE)?;
    let (above, below) = canvas.titled(title, ("sans-serif", 19))?.split_vertically(height);
    match plot {
        Plot::Bars(_, group, column) => draw_bars(&above, &table.numbers(group, column))?,
        Plot::Lines(_, column) => draw_lines(&above, panels_of_rows(table, column))?,
        Plot::Columns(_, panels) => draw_lines(&above, panels_of_columns(table, panels))?,
        Plot::None => {}
    }
    below.draw(&Text::new(caption, (10, 8), ("sans-serif", 10)))?;
    Ok(canvas.present()?)
}

fn draw_bars(canvas: &Canvas, bars: &[(String, f64)]) -> Drawn {
    const LEFT: i32 = 250;
    const LONGEST: f64 = 450.0;
    let most = most(bars);
    for ((label, value), y) in bars.iter().zip((20..).step_by(BAR_STEP as usize)) {
        let end = LEFT + (value / most * LONGEST).max(1.0) as i32;
        let fill = if label.starts_with("TB.") { colour(0).filled() } else { OTHERS.filled() };
        canvas.draw(&Rectangle::new([(LEFT, y - 10), (end, y + 10)], fill))?;
        let shown = if value.fract() == 0.0 { whole(value) } else { value.to_string() };
        text(canvas, label, (LEFT - 10, y), HPos::Right)?;
        text(canvas, &shown, (end + 8, y), HPos::Left)?;
    }
    Ok(())
}

/// Lines over the same places.
struct Panel {
    title: String,
    places: Vec<String>,
    /// At each place the point of each line.
    points: Vec<Vec<f64>>,
    most: f64,
    /// The number of its first line, by which lines have their colours.
    first: usize,
}

/// Returns panels by the first cell of rows, and the names of their lines.
fn panels_of_rows(table: &Table, column: &str) -> (Vec<Panel>, Vec<String>) {
    let most = most(&table.numbers(&[], column));
    let panels = table.next_cells(&[]).into_iter().map(|title| {
        let places = table.next_cells(&[&title]);
        let points_at = |place: &String| table.numbers(&[&title, place], column).into_iter().map(|(_, y)| y);
        let points = places.iter().map(|place| points_at(place).collect()).collect();
        Panel { title, places, points, most, first: 0 }
    });
    let panels: Vec<_> = panels.collect();
    let names = table.next_cells(&[&panels[0].title, &panels[0].places[0]]);
    (panels, names)
}

/// Returns panels by columns, and these as the names of their lines.
fn panels_of_columns(table: &Table, panels: &[(&str, &[&str])]) -> (Vec<Panel>, Vec<String>) {
    let mut names = Vec::new();
    let panels = panels.iter().map(|(title, columns)| {
        let lines: Vec<_> = columns.iter().map(|column| table.numbers(&[], column)).collect();
        let (most, first, places) = (most(&lines.concat()), names.len(), table.next_cells(&[]));
        names.extend(columns.iter().map(ToString::to_string));
        let points =
            (0..places.len()).map(|place| lines.iter().map(|line| line[place].1).collect()).collect();
        Panel { title: title.to_string(), places, points, most, first }
    });
    (panels.collect(), names)
}

fn draw_lines(canvas: &Canvas, (panels, names): (Vec<Panel>, Vec<String>)) -> Drawn {
    const LEGEND: u32 = 250;
    let (drawn, legend) = canvas.split_horizontally(WIDTH - LEGEND);
    for (area, panel) in drawn.split_evenly((1, panels.len())).iter().zip(&panels) {
        draw_panel(area, panel)?;
    }
    for ((number, name), y) in names.iter().enumerate().zip((60..).step_by(26)) {
        legend.draw(&PathElement::new([(14, y), (36, y)], stroke(number)))?;
        text(&legend, name, (46, y), HPos::Left)?;
    }
    Ok(())
}

fn draw_panel(area: &Canvas, panel: &Panel) -> Drawn {
    let Panel { title, places, points, most, first } = panel;
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 14))
        .margin_right(36)
        .x_label_area_size(30)
        .y_label_area_size(64)
        .build_cartesian_2d(0..places.len() - 1, 0.0..most * 1.05)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(FAINT)
        .axis_style(FAINT)
        .x_label_formatter(&|place| places[*place].clone())
        .y_label_formatter(&|value| whole(value))
        .draw()?;
    for line in 0..points[0].len() {
        let points = points.iter().enumerate().map(|(place, at_place)| (place, at_place[line]));
        chart.draw_series(LineSeries::new(points, stroke(first + line).filled()).point_size(3))?;
    }
    Ok(())
}

fn most(numbers: &[(String, f64)]) -> f64 {
    numbers.iter().map(|(_, number)| *number).fold(f64::MIN_POSITIVE, f64::max)
}

fn text(canvas: &Canvas, text: &str, at: (i32, i32), side: HPos) -> Drawn {
    let style = ("sans-serif", 13).into_text_style(canvas).pos(Pos::new(side, VPos::Center));
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
