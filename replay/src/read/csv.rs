//! Values between commas, tabs or semicolons, below a line of their names.

use csv::{ByteRecord, ReaderBuilder};

use super::{Fields, Format};

struct Csv {
    delimiter: u8,
    header: Vec<String>,
    /// Columns, and the numbers of the fields that they are.
    wanted: Vec<(usize, usize)>,
    record: ByteRecord,
}

/// Reads it, if the first line may be the names of columns.
pub fn format(first_line: &[u8]) -> Option<Box<dyn Format>> {
    let first_line = first_line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(first_line);
    let count = |delimiter: &u8| first_line.iter().filter(|byte| *byte == delimiter).count();
    let delimiter = [b',', b'\t', b';'].into_iter().max_by_key(count)?;
    let mut csv = Csv { delimiter, header: Vec::new(), wanted: Vec::new(), record: ByteRecord::new() };
    csv.split(first_line);
    let names = csv.record.iter().map(|name| Some(std::str::from_utf8(name).ok()?.trim().to_owned()));
    csv.header = names.collect::<Option<_>>()?;
    (csv.header.len() > 1).then(|| Box::new(csv) as Box<dyn Format>)
}

impl Csv {
    fn split(&mut self, line: &[u8]) {
        let mut builder = ReaderBuilder::new();
        let builder = builder.has_headers(false).delimiter(self.delimiter).buffer_capacity(line.len().max(1));
        // It only fails as reading a file does.
        let _ = builder.from_reader(line).read_byte_record(&mut self.record);
    }
}

impl Format for Csv {
    fn name(&self) -> &'static str {
        "CSV"
    }

    fn has_header(&self) -> bool {
        true
    }

    fn select(&mut self, names: &[String]) {
        let columns = self.header.iter().enumerate();
        let wanted =
            columns.filter_map(|(column, name)| Some((column, names.iter().position(|n| n == name)?)));
        self.wanted = wanted.collect();
    }

    fn read(&mut self, line: &[u8], fields: &mut Fields) -> bool {
        self.split(line);
        for (column, number) in &self.wanted {
            fields.set(*number, self.record.get(*column).unwrap_or_default());
        }
        self.record.len() == self.header.len()
    }
}
