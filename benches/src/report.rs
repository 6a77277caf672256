//! What a run found, as tables for people, tables for programs and plots, in one folder.

use anyhow::{Context, Result};
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// A table.
#[derive(Default)]
pub struct Table {
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(columns: &[&str]) -> Self {
        Self { columns: columns.iter().map(ToString::to_string).collect(), rows: Vec::new() }
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

    /// As it stands in a document. Numbers stand to the right.
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

    /// As it stands in a terminal.
    pub fn text(&self) -> String {
        let letters = |cell: &String| cell.chars().count();
        let width = |column: usize| {
            let cells = self.rows.iter().chain([&self.columns]).map(|row| letters(&row[column]));
            cells.max().unwrap_or_default()
        };
        let line = |row: &Vec<String>| {
            let padded = row.iter().enumerate().map(|(column, cell)| {
                let padding = " ".repeat(width(column) - letters(cell));
                if is_numeric(cell) {
                    padding + cell
                } else {
                    cell.clone() + &padding
                }
            });
            padded.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
        };
        line(&self.columns) + &self.rows.iter().map(line).collect::<String>()
    }

    fn csv(&self) -> String {
        let cell = |cell: &String| {
            let cell = if is_numeric(cell) { cell.replace(',', "") } else { cell.clone() };
            if cell.contains(',') {
                format!("\"{cell}\"")
            } else {
                cell
            }
        };
        let line = |cells: &Vec<String>| cells.iter().map(cell).collect::<Vec<_>>().join(",") + "\n";
        line(&self.columns) + &self.rows.iter().map(line).collect::<String>()
    }
}

fn is_numeric(cell: &str) -> bool {
    let digits = cell.trim_end_matches([' ', 'x', '%']);
    cell == "-" || digits.replace(',', "").parse::<f64>().is_ok()
}

/// One measurement of several, with its own files.
pub struct Section {
    /// Names the files.
    pub name: &'static str,
    pub title: &'static str,
    /// How it was measured, and how to read it.
    pub text: String,
    pub table: Table,
    /// How many leading columns divide the table into several.
    pub groups: usize,
    /// Names and contents.
    pub plots: Vec<(String, String)>,
}

impl Section {
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

    /// Writes the table for programs, and the plots.
    pub fn write(&self, folder: &Path) -> Result<()> {
        write(&folder.join(format!("{}.csv", self.name)), &self.table.csv())?;
        self.plots.iter().try_for_each(|(name, svg)| write(&folder.join(format!("{name}.svg")), svg))
    }
}

/// Writes all sections and a page that shows them.
pub fn write_all(folder: &Path, page: &str, heading: &str, sections: &[Section]) -> Result<()> {
    fs::create_dir_all(folder)?;
    sections.iter().try_for_each(|section| section.write(folder))?;
    let sections: Vec<String> = sections.iter().map(Section::markdown).collect();
    write(&folder.join(page), &format!("{heading}\n{}", sections.join("\n")))
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| path.display().to_string())
}

/// A whole number with its thousands apart: `1,234,567`.
pub fn whole(number: f64) -> String {
    let digits = format!("{:.0}", number.abs());
    let first = digits.len() % 3;
    let mut parts: Vec<&str> = (first..digits.len()).step_by(3).map(|at| &digits[at..at + 3]).collect();
    if first > 0 {
        parts.insert(0, &digits[..first]);
    }
    format!("{}{}", if number <= -0.5 { "-" } else { "" }, parts.join(","))
}

/// A multiple: `1.25 x`.
pub fn times(ratio: f64) -> String {
    format!("{ratio:.2} x")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_stand_apart() {
        let cases =
            [(0.0, "0"), (999.6, "1,000"), (12.0, "12"), (123_456.0, "123,456"), (-1_234.0, "-1,234")];
        for (number, text) in cases {
            assert_eq!(whole(number), text);
        }
    }

    #[test]
    fn a_table_is_divided_by_its_leading_columns() {
        let mut table = Table::new(&["clients", "approach", "a second"]);
        table.row(["1", "A, b", "1,000"].map(String::from));
        table.row(["16", "A, b", "2,000"].map(String::from));
        assert_eq!(table.csv(), "clients,approach,a second\n1,\"A, b\",1000\n16,\"A, b\",2000\n");
        let group = table.behind(&["16".to_owned()]);
        assert_eq!(group.markdown(), "| approach | a second |\n| --- | --: |\n| A, b | 2,000 |\n");
    }
}
