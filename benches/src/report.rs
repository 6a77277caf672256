//! What a run found, as tables for people, tables for programs and plots, in one folder.

use crate::plot::bars;
use std::fmt::{Display, Write};
use std::fs;
use std::path::Path;
use std::sync::LazyLock;
use std::time::Instant;

/// A table.
pub struct Table {
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table of no rows yet; the names of the columns are separated by ` | `.
    pub fn new(columns: &str) -> Self {
        Self { columns: columns.split(" | ").map(str::to_owned).collect(), rows: Vec::new() }
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The same table, of the rows that begin with these cells, without them.
    fn behind(&self, group: &[String]) -> Self {
        let rows = self.rows.iter().filter(|row| row.starts_with(group));
        Self {
            columns: self.columns[group.len()..].to_vec(),
            rows: rows.map(|row| row[group.len()..].to_vec()).collect(),
        }
    }

    /// What the rows that begin with these cells are called, and their numbers in a column.
    pub fn numbers(&self, group: &[&str], column: &str) -> Vec<(String, f64)> {
        let place = self.columns.iter().position(|name| name == column).expect("there is the column");
        let rows = self.rows.iter().filter(|row| row.iter().zip(group).all(|(cell, wanted)| cell == wanted));
        let number = |cell: &str| cell.replace(',', "").parse().expect("the column is of numbers");
        rows.map(|row| (row[group.len()].clone(), number(&row[place]))).collect()
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
    fn csv(&self, file: &Path) {
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

/// One measurement of several, with its own files.
pub struct Section {
    name: &'static str,
    title: &'static str,
    text: String,
    table: Table,
    groups: usize,
    plots: Vec<(&'static str, String)>,
}

impl Section {
    /// `name` names the files, `text` says how it was measured and how to read it.
    pub fn new(name: &'static str, title: &'static str, text: impl Into<String>, table: Table) -> Self {
        Self { name, title, text: text.into(), table, groups: 0, plots: Vec::new() }
    }

    /// Divides the table into several by its leading columns.
    pub fn grouped_by(self, groups: usize) -> Self {
        Self { groups, ..self }
    }

    /// Adds a plot with a file of this name.
    pub fn plot(mut self, name: &'static str, svg: String) -> Self {
        self.plots.push((name, svg));
        self
    }

    /// Adds a plot of a column's numbers, those of a group of rows, each in a unit.
    pub fn bars(
        self,
        (name, title): (&'static str, &str),
        group: &[&str],
        (column, unit): (&str, &str),
        caption: &str,
    ) -> Self {
        let svg = bars(title, caption, &self.table.numbers(group, column), unit);
        self.plot(name, svg)
    }

    /// A page of its own, which is also printed.
    pub fn write_page(self, folder: &Path, caption: &str) {
        print!("{}", self.table.markdown());
        let page = format!("{}.md", self.name);
        write_all(folder, &page, &format!("# Benchmark\n\n{caption}\n"), &[self]);
    }

    fn markdown(&self) -> String {
        let mut text = format!("## {}\n\n{}\n", self.title, self.text);
        for (name, _) in &self.plots {
            let _ = write!(text, "\n![{}]({name}.svg)\n", self.title);
        }
        if self.groups == 0 {
            return text + "\n" + &self.table.markdown();
        }
        let mut groups: Vec<&[String]> = self.table.rows.iter().map(|row| &row[..self.groups]).collect();
        groups.dedup();
        for group in groups {
            let _ = write!(text, "\n### {}\n\n{}", group.join(", "), self.table.behind(group).markdown());
        }
        text
    }
}

/// Writes the tables and plots of all sections, and a page that shows them.
pub fn write_all(folder: &Path, page: &str, heading: &str, sections: &[Section]) {
    fs::create_dir_all(folder).unwrap();
    for section in sections {
        section.table.csv(&folder.join(format!("{}.csv", section.name)));
        for (name, svg) in &section.plots {
            fs::write(folder.join(format!("{name}.svg")), svg).unwrap();
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
pub fn whole(number: f64) -> String {
    let digits = format!("{number:.0}");
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}

/// A multiple: `1.25 x`.
pub fn times(ratio: f64) -> String {
    format!("{ratio:.2} x")
}

/// The middle one of several.
pub fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The least of several.
pub fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

/// The most of several.
pub fn most(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_stand_apart() {
        for (number, text) in [(0.0, "0"), (999.6, "1,000"), (12.0, "12"), (123_456.0, "123,456")] {
            assert_eq!(whole(number), text);
        }
    }

    #[test]
    fn a_table_is_divided_by_its_leading_columns() {
        let mut table = Table::new("clients | approach | a second");
        table.row(["1", "A, b", "1,000"].map(String::from));
        table.row(["16", "A, b", "2,000"].map(String::from));
        let group = table.behind(&["16".to_owned()]);
        assert_eq!(group.markdown(), "| approach | a second |\n| --- | --: |\n| A, b | 2,000 |\n");
        let file = tempfile::NamedTempFile::new().unwrap();
        table.csv(file.path());
        let csv = fs::read_to_string(file.path()).unwrap();
        assert_eq!(csv, "clients,approach,a second\n1,\"A, b\",1000\n16,\"A, b\",2000\n");
    }
}
