//! The rows that the pool's bench and its peers print: `peer,workload,value`.

use anyhow::{Context as _, Result, bail};
use std::path::Path;

/// One measured value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    pub(crate) peer: String,
    pub(crate) workload: String,
    pub(crate) value: f64,
}

/// The rows of a text. Comments and the head are left out, and so is what has no plain number, such
/// as a limit with its unit; a line that is no row at all is an error.
pub(crate) fn parse(text: &str) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') || line == "peer,workload,ns" {
            continue;
        }
        let split = line.split_once(',').and_then(|(peer, rest)| {
            rest.rsplit_once(',').map(|(workload, value)| (peer, workload, value))
        });
        let Some((peer, workload, value)) = split else {
            bail!("line {}: `{line}` is no row of peer,workload,value", number + 1);
        };
        if let Ok(value) = value.trim().parse() {
            rows.push(Row { peer: peer.to_owned(), workload: workload.to_owned(), value });
        }
    }
    Ok(rows)
}

/// The rows of several files.
pub(crate) fn read(paths: &[impl AsRef<Path>]) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for path in paths.iter().map(AsRef::as_ref) {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("{} cannot be read", path.display()))?;
        rows.extend(parse(&text).with_context(|| path.display().to_string())?);
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_and_the_rest_is_left_out() {
        let text = "# a machine\npeer,workload,ns\nrmm pool,random n=1000 max=1MiB,423.0\n\n\
            limit,event record,142 ns\n";
        let row = Row {
            peer: "rmm pool".to_owned(),
            workload: "random n=1000 max=1MiB".to_owned(),
            value: 423.0,
        };
        assert_eq!(parse(text).unwrap(), [row]);
    }

    #[test]
    fn a_line_that_is_no_row_is_an_error() {
        let error = parse("rmm pool,1.0\n").unwrap_err();
        assert!(error.to_string().contains("line 1"), "{error}");
    }
}
