//! Values between commas, tabs or semicolons, below a line of their names.

use csv::{ByteRecord, ReaderBuilder};

use super::{Fields, Format, Skipped, OTHER};

/// Reads them, if the first line may be names.
pub fn format(first_line: &[u8], names: &[String]) -> Option<Format> {
    let names_line = first_line.to_vec();
    let first_line = first_line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(first_line);
    let count = |delimiter: &u8| first_line.iter().filter(|byte| *byte == delimiter).count();
    let delimiter = [b',', b'\t', b';'].into_iter().max_by_key(count)?;
    let mut record = ByteRecord::new();
    split(first_line, delimiter, &mut record);
    let name = |name| Some(std::str::from_utf8(name).ok()?.trim().to_owned());
    let header: Vec<String> = record.iter().map(name).collect::<Option<_>>()?;
    let number = |name: &str| names.iter().position(|wanted| wanted == name);
    let columns = header.iter().enumerate();
    let wanted: Vec<_> = columns.filter_map(|(column, name)| Some((column, number(name)?))).collect();
    let width = Some(header.len()).filter(|width| *width > 1)?;
    let read = move |line: &[u8], fields: &mut Fields| {
        if line.trim_ascii() == names_line {
            return Err(Skipped::Comment);
        }
        split(line, delimiter, &mut record);
        for (column, number) in &wanted {
            fields.set(*number, record.get(*column).unwrap_or_default());
        }
        (record.len() == width).then_some(()).ok_or(OTHER)
    };
    Some(Format::new("CSV", &header, Box::new(read)))
}

fn split(line: &[u8], delimiter: u8, record: &mut ByteRecord) {
    let mut builder = ReaderBuilder::new();
    let builder = builder.has_headers(false).delimiter(delimiter).buffer_capacity(line.len().max(1));
    // It only fails as reading a file does.
    let _ = builder.from_reader(line).read_byte_record(record);
}
