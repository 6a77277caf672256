//! Plots as SVG: horizontal bars, and lines over a few places.

use crate::report::whole;
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

/// Bars below each other: what each is of, and how long it is in a unit.
pub fn bars(title: &str, caption: &str, bars: &[(String, f64)], unit: &str) -> String {
    const LEFT: i32 = 250;
    const RIGHT: i32 = 260;
    const STEP: i32 = 32;
    let most = bars.iter().map(|(_, value)| *value).fold(f64::MIN_POSITIVE, f64::max);
    let bottom = TOP + STEP * bars.len() as i32;
    svg(title, caption, bottom, |canvas| {
        for ((label, value), y) in bars.iter().zip((TOP..).step_by(STEP as usize)) {
            let end = LEFT + (value / most * f64::from(WIDTH - LEFT - RIGHT)).max(1.0) as i32;
            let own = is_own(label);
            let (fill, shown) = (if own { colour(0) } else { OTHERS }, shown(*value));
            text(canvas, label, (LEFT - 10, y + 13), HPos::Right, own)?;
            canvas.draw(&Rectangle::new([(LEFT, y + 3), (end, y + 23)], fill.filled()))?;
            text(canvas, &format!("{shown}{unit}"), (end + 8, y + 13), HPos::Left, own)?;
        }
        Ok(())
    })
}

/// With so many digits as say something.
fn shown(value: f64) -> String {
    if value < 10.0 && value.fract() != 0.0 {
        format!("{value:.2}")
    } else {
        whole(value)
    }
}

/// One line: its name and its values, one for each place.
pub struct Series {
    pub name: String,
    pub values: Vec<f64>,
}

/// Panels beside each other, each a title and lines, with one legend.
pub struct Lines<'a> {
    /// What is below each place.
    pub places: Vec<String>,
    pub places_are: &'a str,
    pub values_are: &'a str,
    pub panels: Vec<(&'a str, Vec<Series>)>,
}

impl Lines<'_> {
    pub fn plot(&self, title: &str, caption: &str) -> String {
        const HEIGHT: i32 = 340;
        const LEGEND: i32 = 250;
        let most = self.panels.iter().flat_map(|(_, lines)| lines).flat_map(|line| &line.values);
        let most = most.copied().fold(0.0, f64::max);
        svg(title, caption, TOP + HEIGHT, |canvas| {
            text(canvas, self.values_are, (10, TOP - 20), HPos::Left, false)?;
            let (drawn, legend) = canvas.margin(TOP - 10, 0, 0, 0).split_horizontally(WIDTH - LEGEND);
            let areas = drawn.split_evenly((1, self.panels.len()));
            for (area, (title, lines)) in areas.iter().zip(&self.panels) {
                self.panel(&area.margin(0, 0, 0, 10), title, lines, most)?;
            }
            for (number, line) in self.panels[0].1.iter().enumerate() {
                let y = 30 + 26 * number as i32;
                let stroke = colour(number).stroke_width(if number == 0 { 3 } else { 2 });
                legend.draw(&PathElement::new([(14, y), (36, y)], stroke))?;
                text(&legend, &line.name, (46, y), HPos::Left, number == 0)?;
            }
            Ok(())
        })
    }

    fn panel(&self, area: &Canvas, title: &str, lines: &[Series], most: f64) -> Drawn {
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
        for (number, line) in lines.iter().enumerate() {
            let points = line.values.iter().enumerate();
            let points = points.map(|(place, value)| (SegmentValue::CenterOf(place), *value));
            let stroke = colour(number).stroke_width(if number == 0 { 3 } else { 2 });
            chart.draw_series(LineSeries::new(points, stroke.filled()).point_size(3))?;
        }
        Ok(())
    }
}

/// A drawing with a title above and a caption below.
fn svg(title: &str, caption: &str, bottom: i32, draw: impl FnOnce(&Canvas) -> Drawn) -> String {
    const LINE: i32 = 15;
    let lines = textwrap::wrap(caption, CAPTION_LETTERS);
    let size = (WIDTH as u32, (bottom + 32 + LINE * lines.len() as i32) as u32);
    let draw_all = |svg: &mut String| -> Drawn {
        let canvas = SVGBackend::with_string(svg, size).into_drawing_area();
        canvas.fill(&WHITE)?;
        let bold = ("sans-serif", 19).into_font().style(FontStyle::Bold);
        canvas.draw(&Text::new(title, (10, 14), bold.color(&INK)))?;
        draw(&canvas.split_vertically(bottom).0)?;
        for (line, y) in lines.iter().zip((bottom + 24..).step_by(LINE as usize)) {
            canvas.draw(&Text::new(line.as_ref(), (10, y), ("sans-serif", 11).into_font().color(&INK)))?;
        }
        Ok(canvas.present()?)
    };
    let mut svg = String::new();
    draw_all(&mut svg).expect("a text can be written");
    svg
}

fn text(canvas: &Canvas, text: &str, at: (i32, i32), side: HPos, strong: bool) -> Drawn {
    let style = if strong { FontStyle::Bold } else { FontStyle::Normal };
    let font = ("sans-serif", 13).into_font().style(style).color(&INK);
    Ok(canvas.draw(&Text::new(text.to_owned(), at, font.pos(Pos::new(side, VPos::Center))))?)
}

/// Whether a label names one of the module's own commands.
fn is_own(label: &str) -> bool {
    label.starts_with("TB.")
}

fn colour(place: usize) -> RGBColor {
    let [_, red, green, blue] = COLOURS[place % COLOURS.len()].to_be_bytes();
    RGBColor(red, green, blue)
}
