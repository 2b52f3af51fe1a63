//! The committed list of mutants, `tests/mutants.csv`.

use anyhow::{Context as _, Result, bail};
use std::io::Read;
use std::path::Path;

pub(crate) const PATH: &str = "tests/mutants.csv";

const COLUMNS: [&str; 7] = ["module", "file", "function", "mutation", "state", "test", "reason"];

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum State {
    /// The test of the row finds it.
    Killed,
    /// No test can find it, for the reason of the row.
    Equal,
}

/// One row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    pub(crate) module: String,
    pub(crate) file: String,
    pub(crate) function: String,
    pub(crate) mutation: String,
    pub(crate) state: State,
    /// `target::filter`, where the filter is a part of a test's name.
    pub(crate) test: String,
    pub(crate) reason: String,
}

pub(crate) fn committed(root: &Path) -> Result<Vec<Row>> {
    let path = root.join(PATH);
    let file =
        std::fs::File::open(&path).with_context(|| format!("{} cannot be read", path.display()))?;
    read(file).with_context(|| path.display().to_string())
}

fn read(file: impl Read) -> Result<Vec<Row>> {
    let mut reader =
        csv::ReaderBuilder::new().trim(csv::Trim::All).comment(Some(b'#')).from_reader(file);
    if reader.headers()? != &csv::StringRecord::from(COLUMNS.to_vec()) {
        bail!("the first line has to be `{}`", COLUMNS.join(","));
    }
    let mut rows: Vec<Row> = Vec::new();
    for record in reader.records() {
        let record = record?;
        let field = |index| record.get(index).unwrap_or_default().to_string();
        let (test, reason) = (field(5), field(6));
        let state = match record.get(4) {
            Some("killed") if test.contains("::") => State::Killed,
            Some("equal") if !reason.is_empty() => State::Equal,
            _ => {
                bail!("neither killed by a test `target::name` nor equal for a reason: {record:?}")
            }
        };
        let row = Row {
            module: field(0),
            file: field(1),
            function: field(2),
            mutation: field(3),
            state,
            test,
            reason,
        };
        if rows.iter().any(|other| other.is_of(&row.file, &row.function, &row.mutation)) {
            bail!("listed twice: {row:?}");
        }
        rows.push(row);
    }
    Ok(rows)
}

impl Row {
    pub(crate) fn is_of(&self, file: &str, function: &str, mutation: &str) -> bool {
        self.file == file && self.function == function && self.mutation == mutation
    }
}

/// A line of the list. `state` may be one that a list cannot have.
pub(crate) fn line(fields: [&str; 7]) -> Result<String> {
    let mut writer = csv::WriterBuilder::new().from_writer(Vec::new());
    writer.write_record(fields)?;
    let bytes = writer.into_inner().map_err(|error| error.into_error())?;
    Ok(String::from_utf8(bytes)?.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "module,file,function,mutation,state,test,reason\n";

    #[test]
    fn reads_rows_and_refuses_what_says_nothing() {
        let text =
            format!("{HEADER}pool,src/pool/a.rs,A::f,\"f(1, 2) => f(2, 1)\",killed,it::pool::x,\n");
        let rows = read(text.as_bytes()).unwrap();
        assert!(rows[0].is_of("src/pool/a.rs", "A::f", "f(1, 2) => f(2, 1)"));
        for wrong in ["killed,,", "equal,,", "lives,it::x,", "killed,it,"] {
            let text = format!("{HEADER}m,f,g,w,{wrong}\n");
            assert!(read(text.as_bytes()).is_err(), "{wrong}");
        }
        let twice = format!("{HEADER}m,f,g,w,equal,,why\nm,f,g,w,equal,,why\n");
        assert!(read(twice.as_bytes()).is_err());
    }
}
