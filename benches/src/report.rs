//! What a run found, as tables for people, tables for programs and plots, in one folder.

use crate::plot::{svg, Plot};
use std::fmt::{Display, Write};
use std::fs;
use std::path::Path;
use std::sync::LazyLock;
use std::time::Instant;

pub struct Table {
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table of no rows yet; the names of the columns are separated by ` | `.
    pub fn new(columns: &str) -> Self {
        Self { columns: columns.split(" | ").map(str::to_owned).collect(), rows: Vec::new() }
    }

    /// Adds a row: what it is of, and figures.
    pub fn row(&mut self, of: &[&str], figures: impl IntoIterator<Item = String>) {
        self.rows.push(of.iter().map(ToString::to_string).chain(figures).collect());
    }

    /// The same table, of the rows that begin with these cells, without them.
    fn behind(&self, group: &[String]) -> Self {
        let rows = self.rows.iter().filter(|row| row.starts_with(group));
        Self {
            columns: self.columns[group.len()..].to_vec(),
            rows: rows.map(|row| row[group.len()..].to_vec()).collect(),
        }
    }

    /// What follows these cells in the rows that begin with them, each once.
    pub fn next_cells(&self, group: &[&str]) -> Vec<String> {
        let mut cells: Vec<String> = self.of(group).map(|row| row[group.len()].clone()).collect();
        cells.dedup();
        cells
    }

    fn of<'a>(&'a self, group: &'a [&str]) -> impl Iterator<Item = &'a Vec<String>> {
        self.rows.iter().filter(move |row| row.iter().zip(group).all(|(cell, wanted)| cell == wanted))
    }

    /// What the rows that begin with these cells are called, and their numbers in a column.
    pub fn numbers(&self, group: &[&str], column: &str) -> Vec<(String, f64)> {
        let place = self.columns.iter().position(|name| name == column).expect("there is the column");
        let number = |cell: &str| cell.replace(',', "").parse().expect("the column is of numbers");
        self.of(group).map(|row| (row[group.len()].clone(), number(&row[place]))).collect()
    }

    /// For people. Numbers stand to the right.
    fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let rule = |column: usize| {
            let numeric = self.rows.iter().all(|row| is_numeric(&row[column]));
            if numeric { "--:" } else { "---" }.to_owned()
        };
        let rules: Vec<String> = (0..self.columns.len()).map(rule).collect();
        let rows: String = self.rows.iter().map(|row| line(row)).collect();
        line(&self.columns) + &line(&rules) + &rows
    }

    /// For programs.
    pub fn csv(&self, file: &Path) {
        let mut csv = csv::Writer::from_path(file).unwrap();
        csv.write_record(&self.columns).unwrap();
        for row in &self.rows {
            csv.write_record(row.iter().map(|cell| {
                let thousands = if is_numeric(cell) { "," } else { "\0" };
                cell.replace(thousands, "")
            }))
            .unwrap();
        }
        csv.flush().unwrap();
    }
}

fn is_numeric(cell: &str) -> bool {
    let digits = cell.trim_end_matches([' ', 'x', '%']);
    cell == "-" || digits.replace(',', "").parse::<f64>().is_ok()
}

/// One measurement of several.
pub struct Section {
    /// What its file is called.
    pub name: &'static str,
    pub title: &'static str,
    /// How it was measured, and how to read it.
    pub text: String,
    pub table: Table,
    /// By so many of its leading columns the table is divided into several.
    pub groups: usize,
    pub plot: Plot,
}

impl Section {
    fn markdown(&self) -> String {
        let mut text = format!("## {}\n\n{}\n", self.title, self.text);
        if !matches!(self.plot, Plot::None) {
            let _ = write!(text, "\n![{}]({}.svg)\n", self.title, self.name);
        }
        let mut groups: Vec<&[String]> = self.table.rows.iter().map(|row| &row[..self.groups]).collect();
        groups.dedup();
        for group in groups {
            let heading =
                if group.is_empty() { String::new() } else { format!("### {}\n\n", group.join(", ")) };
            let _ = write!(text, "\n{heading}{}", self.table.behind(group).markdown());
        }
        text
    }
}

/// Prints a section, and writes a page of its own for it.
pub fn write_page(folder: &Path, caption: &str, section: Section) {
    print!("{}", section.table.markdown());
    let page = format!("{}.md", section.name);
    write_all(folder, &page, &format!("# Benchmark\n\n{caption}\n"), caption, &[section]);
}

/// Writes the tables and plots of all sections, with a caption below these, and a page that shows them.
pub fn write_all(folder: &Path, page: &str, heading: &str, caption: &str, sections: &[Section]) {
    fs::create_dir_all(folder).unwrap();
    for Section { name, title, table, plot, .. } in sections {
        table.csv(&folder.join(format!("{name}.csv")));
        if let Plot::Bars(_, column) | Plot::Lines(column) = plot {
            let title = format!("{title}: {column}");
            fs::write(folder.join(format!("{name}.svg")), svg(&title, plot, table, caption)).unwrap();
        }
    }
    let sections: Vec<String> = sections.iter().map(Section::markdown).collect();
    fs::write(folder.join(page), format!("{heading}\n{}", sections.join("\n"))).unwrap();
}

/// Says on standard error what is being done.
pub fn note(what: impl Display) {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    eprintln!("{:>4} s  {what}", START.elapsed().as_secs());
}

/// A whole number with its thousands apart: `1,234,567`.
pub fn whole(number: impl Display) -> String {
    let digits = format!("{number:.0}");
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}

/// A multiple: `1.25 x`.
pub fn times(ratio: f64) -> String {
    format!("{ratio:.2} x")
}

/// Several in order; the middle one is the median.
pub fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

/// The middle one of several.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let values = sorted(values.into_iter().collect());
    values[values.len() / 2]
}

#[test]
fn a_table_is_divided_by_its_leading_columns() {
    let mut table = Table::new("clients | approach | a second");
    table.row(&["1", "A, b"], [whole(999.6)]);
    table.row(&["16", "A, b"], [whole(1_234_567.0)]);
    let group = table.behind(&["16".to_owned()]);
    assert_eq!(group.markdown(), "| approach | a second |\n| --- | --: |\n| A, b | 1,234,567 |\n");
    let file = tempfile::NamedTempFile::new().unwrap();
    table.csv(file.path());
    let csv = fs::read_to_string(file.path()).unwrap();
    assert_eq!(csv, "clients,approach,a second\n1,\"A, b\",1000\n16,\"A, b\",1234567\n");
}
