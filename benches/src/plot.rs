//! Plots of tables as SVG: horizontal bars, and lines over a few places.

use crate::report::{whole, Table};
use plotters::coord::ranged1d::SegmentValue;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Colours that people with any colour vision can tell apart (Okabe and Ito), the module's own first.
const COLOURS: [u32; 9] =
    [0x0072b2, 0xe69f00, 0x009e73, 0xcc79a7, 0x56b4e9, 0xd55e00, 0x7f7f7f, 0x8c6d31, 0x000000];
const OTHERS: RGBColor = RGBColor(0x9a, 0xa5, 0xb1);
const INK: RGBColor = RGBColor(0x1f, 0x23, 0x28);
const FAINT: RGBColor = RGBColor(0xd8, 0xde, 0xe4);
const WIDTH: i32 = 960;
/// Letters of the caption that fit beside each other.
const CAPTION_LETTERS: usize = 160;
/// Where the drawing begins, below its title.
const TOP: i32 = 74;

/// Only what cannot be written fails, and a text can be.
type Drawn = Result<(), Box<dyn std::error::Error>>;
type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;

pub struct Plot {
    /// What its file is called.
    pub name: &'static str,
    pub title: String,
    pub drawing: Drawing,
}

pub enum Drawing {
    /// Bars below each other, of the rows that begin with these cells: a column, and its unit.
    Bars(Vec<&'static str>, &'static str, &'static str),
    Lines(Lines),
}

/// Panels beside each other, each a title and lines, with one legend.
pub struct Lines {
    /// What is below each place.
    pub places: Vec<String>,
    pub places_are: &'static str,
    pub values_are: &'static str,
    pub panels: Vec<(&'static str, Vec<Line>)>,
}

/// Its name and its values, one for each place.
pub type Line = (String, Vec<f64>);

impl Plot {
    pub fn svg(&self, table: &Table, caption: &str) -> String {
        let mut svg = String::new();
        self.draw(&mut svg, table, caption).expect("a text can be written");
        svg
    }

    /// With the title above and the caption below.
    fn draw(&self, svg: &mut String, table: &Table, caption: &str) -> Drawn {
        const LINE: i32 = 15;
        let bars = match &self.drawing {
            Drawing::Bars(group, column, _) => table.numbers(group, column),
            Drawing::Lines(_) => Vec::new(),
        };
        let height = if bars.is_empty() { 340 } else { BAR_STEP * bars.len() as i32 };
        let (lines, bottom) = (textwrap::wrap(caption, CAPTION_LETTERS), TOP + height);
        let size = (WIDTH as u32, (bottom + 32 + LINE * lines.len() as i32) as u32);
        let canvas = SVGBackend::with_string(svg, size).into_drawing_area();
        canvas.fill(&WHITE)?;
        let bold = ("sans-serif", 19).into_font().style(FontStyle::Bold);
        canvas.draw(&Text::new(self.title.as_str(), (10, 14), bold.color(&INK)))?;
        let area = canvas.split_vertically(bottom).0;
        match &self.drawing {
            Drawing::Bars(.., unit) => draw_bars(&area, &bars, unit)?,
            Drawing::Lines(lines) => lines.draw(&area)?,
        }
        for (line, y) in lines.iter().zip((bottom + 24..).step_by(LINE as usize)) {
            canvas.draw(&Text::new(line.as_ref(), (10, y), ("sans-serif", 11).into_font().color(&INK)))?;
        }
        Ok(canvas.present()?)
    }
}

/// From one bar to the next.
const BAR_STEP: i32 = 32;

fn draw_bars(canvas: &Canvas, bars: &[(String, f64)], unit: &str) -> Drawn {
    const LEFT: i32 = 250;
    const RIGHT: i32 = 260;
    let most = bars.iter().map(|(_, value)| *value).fold(f64::MIN_POSITIVE, f64::max);
    for ((label, value), y) in bars.iter().zip((TOP..).step_by(BAR_STEP as usize)) {
        let end = LEFT + (value / most * f64::from(WIDTH - LEFT - RIGHT)).max(1.0) as i32;
        let is_own = label.starts_with("TB.");
        let fill = if is_own { colour(0) } else { OTHERS };
        // With so many digits as say something.
        let is_small = *value < 10.0 && value.fract() != 0.0;
        let shown = if is_small { format!("{value:.2}") } else { whole(*value) };
        text(canvas, label, (LEFT - 10, y + 13), HPos::Right, is_own)?;
        canvas.draw(&Rectangle::new([(LEFT, y + 3), (end, y + 23)], fill.filled()))?;
        text(canvas, &format!("{shown}{unit}"), (end + 8, y + 13), HPos::Left, is_own)?;
    }
    Ok(())
}

impl Lines {
    fn draw(&self, canvas: &Canvas) -> Drawn {
        const LEGEND: i32 = 250;
        let most = self.panels.iter().flat_map(|(_, lines)| lines).flat_map(|(_, values)| values);
        let most = most.copied().fold(0.0, f64::max);
        text(canvas, self.values_are, (10, TOP - 20), HPos::Left, false)?;
        let (drawn, legend) = canvas.margin(TOP - 10, 0, 0, 0).split_horizontally(WIDTH - LEGEND);
        let areas = drawn.split_evenly((1, self.panels.len()));
        for (area, (title, lines)) in areas.iter().zip(&self.panels) {
            self.draw_panel(&area.margin(0, 0, 0, 10), title, lines, most)?;
        }
        for (number, (name, _)) in self.panels[0].1.iter().enumerate() {
            let y = 30 + 26 * number as i32;
            legend.draw(&PathElement::new([(14, y), (36, y)], stroke(number)))?;
            text(&legend, name, (46, y), HPos::Left, number == 0)?;
        }
        Ok(())
    }

    fn draw_panel(&self, area: &Canvas, title: &str, lines: &[Line], most: f64) -> Drawn {
        let mut chart = ChartBuilder::on(area)
            .caption(title, ("sans-serif", 14).into_font().style(FontStyle::Bold).color(&INK))
            .x_label_area_size(46)
            .y_label_area_size(64)
            .build_cartesian_2d((0..self.places.len() - 1).into_segmented(), 0.0..most * 1.05)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(FAINT)
            .axis_style(FAINT)
            .label_style(("sans-serif", 13).into_font().color(&INK))
            .x_desc(self.places_are)
            .x_label_formatter(&|place| match place {
                SegmentValue::CenterOf(place) => self.places.get(*place).cloned().unwrap_or_default(),
                _ => String::new(),
            })
            .y_label_formatter(&|value| match most {
                10_000.0.. => format!("{}k", value / 1000.0),
                _ => format!("{value:.1}"),
            })
            .draw()?;
        for (number, (_, values)) in lines.iter().enumerate() {
            let points = values.iter().enumerate();
            let points = points.map(|(place, value)| (SegmentValue::CenterOf(place), *value));
            chart.draw_series(LineSeries::new(points, stroke(number).filled()).point_size(3))?;
        }
        Ok(())
    }
}

fn text(canvas: &Canvas, text: &str, at: (i32, i32), side: HPos, strong: bool) -> Drawn {
    let style = if strong { FontStyle::Bold } else { FontStyle::Normal };
    let font = ("sans-serif", 13).into_font().style(style).color(&INK);
    Ok(canvas.draw(&Text::new(text.to_owned(), at, font.pos(Pos::new(side, VPos::Center))))?)
}

/// Of lines, the first of which is the module's.
fn stroke(place: usize) -> ShapeStyle {
    colour(place).stroke_width(if place == 0 { 3 } else { 2 })
}

fn colour(place: usize) -> RGBColor {
    let [_, red, green, blue] = COLOURS[place % COLOURS.len()].to_be_bytes();
    RGBColor(red, green, blue)
}
