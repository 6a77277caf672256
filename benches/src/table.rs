//! Tables of figures, for people and for programs.

use std::fmt::Display;
use std::fs;
use std::path::Path;

/// Under which title a column of a table is drawn, and how.
pub enum Plot {
    None,
    /// Bars below each other, of the rows that begin with these cells.
    Bars(&'static str, &'static [&'static str], &'static str),
    /// Panels beside each other, for each first cell one; in each, lines over the second cells, for each third cell one.
    Lines(&'static str, &'static str),
    /// Panels beside each other, each with its title; in each, lines over the first cells, for each of these columns one.
    Columns(&'static str, &'static [(&'static str, &'static [&'static str])]),
}

pub struct Table {
    /// What its files are called, and its place in a page.
    pub name: &'static str,
    columns: Vec<String>,
    /// By so many leading columns it is divided into several for people.
    groups: usize,
    pub plot: Plot,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table of no rows yet; the names of the columns are separated by ` | `, and those by which it is divided come
    /// before ` || `.
    pub fn new(name: &'static str, plot: Plot, columns: &str) -> Self {
        let groups = columns.split_once(" || ").map_or(0, |(leading, _)| leading.split(" | ").count());
        let columns = columns.replace(" || ", " | ").split(" | ").map(str::to_owned).collect();
        Self { name, columns, groups, plot, rows: Vec::new() }
    }

    /// Adds a row: what it is of, and figures.
    pub fn row(&mut self, of: &[&str], figures: impl IntoIterator<Item = String>) {
        self.rows.push(of.iter().map(ToString::to_string).chain(figures).collect());
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
    pub fn markdown(&self) -> String {
        let line = |cells: &Vec<String>| format!("| {} |\n", cells[self.groups..].join(" | "));
        let rule = |column: usize| {
            let numeric = self.rows.iter().all(|row| is_numeric(&row[column]));
            if numeric { "--:" } else { "---" }.to_owned()
        };
        let head = line(&self.columns) + &line(&(0..self.columns.len()).map(rule).collect());
        let group = |row: &Vec<String>| row[..self.groups].join(", ");
        let part = |rows: &[Vec<String>]| {
            let heading =
                if self.groups > 0 { format!("### {}\n\n", group(&rows[0])) } else { String::new() };
            heading + &head + &rows.iter().map(line).collect::<String>()
        };
        let parts = self.rows.chunk_by(|one, other| group(one) == group(other));
        parts.map(part).collect::<Vec<_>>().join("\n")
    }

    /// For programs.
    pub fn csv(&self, folder: &Path) {
        fs::create_dir_all(folder).unwrap();
        let mut csv = csv::Writer::from_path(folder.join(format!("{}.csv", self.name))).unwrap();
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
    let mut table = Table::new("calls", Plot::None, "clients || approach | a second");
    table.row(&["1", "A, b"], [whole(999.6)]);
    table.row(&["16", "A, b"], [whole(1_234_567.0)]);
    let head = "| approach | a second |\n| --- | --: |";
    let parts = format!("### 1\n\n{head}\n| A, b | 1,000 |\n\n### 16\n\n{head}\n| A, b | 1,234,567 |\n");
    assert_eq!(table.markdown(), parts);
    let folder = tempfile::tempdir().unwrap();
    table.csv(folder.path());
    let csv = fs::read_to_string(folder.path().join("calls.csv")).unwrap();
    assert_eq!(csv, "clients,approach,a second\n1,\"A, b\",1000\n16,\"A, b\",1234567\n");
}
