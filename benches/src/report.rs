//! What a run found, as tables for people, tables for programs and plots, in one folder.

use crate::plot::draw;
use crate::table::{Plot, Table};
use std::fmt::Display;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;
use std::time::Instant;

/// Writes tables and their plots, with a caption below these, and a page that shows them: the one of the documentation,
/// which says how they were measured, with new tables between its marks.
pub fn write(folder: &Path, page: &str, caption: &str, tables: &[Table]) {
    const PAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/benchmarks");
    for table in tables {
        print!("\n{}\n\n{}", table.name, table.markdown());
        table.csv(folder);
        if let Plot::Bars(title, ..) | Plot::Lines(title, _) | Plot::Columns(title, _) = table.plot {
            let file = folder.join(format!("{}.svg", table.name));
            draw(&file, title, &table.plot, table, caption).expect("a plot can be written");
        }
    }
    let text = fs::read_to_string(Path::new(PAGES).join(page)).unwrap();
    let text = replaced(text, "machine", &format!("{caption}\n"));
    let fill = |text, table: &Table| replaced(text, table.name, &table.markdown());
    fs::write(folder.join(page), tables.iter().fold(text, fill)).unwrap();
}

/// A page with another text between the marks of a name.
fn replaced(page: String, name: &str, text: &str) -> String {
    let [begin, end] = ["", "/"].map(|slash| format!("<!-- {slash}{name} -->\n"));
    let marked = page.split_once(&begin).and_then(|(before, rest)| Some((before, rest.split_once(&end)?.1)));
    let (before, after) = marked.unwrap_or_else(|| panic!("the page has no marks of {name}"));
    format!("{before}{begin}\n{text}\n{end}{after}")
}

/// Says on standard error what is being done.
pub fn note(what: impl Display) {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    eprintln!("{:>4} s  {what}", START.elapsed().as_secs());
}
