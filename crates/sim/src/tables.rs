//! Files of batch latencies: one line for each model, a column `b<size>_ms` for each batch size.

use crate::Error;
use std::path::Path;

/// The batch sizes and times in milliseconds of one model in such a file.
pub(crate) fn batch_times(path: &Path, model: &str) -> Result<Vec<(u32, f64)>, Error> {
    let text = std::fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    parse(&text, model).map_err(|message| Error::value(format!("{}: {message}", path.display())))
}

fn parse(text: &str, model: &str) -> Result<Vec<(u32, f64)>, String> {
    let mut lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let header: Vec<&str> = lines.next().unwrap_or_default().split(',').map(str::trim).collect();
    let size = |column: &str| column.strip_prefix('b')?.strip_suffix("_ms")?.parse::<u32>().ok();
    if header.first() != Some(&"model") || !header.iter().any(|column| size(column).is_some()) {
        return Err("the first line must name the columns `model` and `b1_ms`, `b2_ms` and so on".into());
    }
    let row = lines.map(|line| line.split(',').map(str::trim).collect::<Vec<_>>()).find(|fields| fields[0] == model);
    let row = row.ok_or_else(|| format!("there is no model {model:?}: give one of the first column as `row`"))?;
    let mut times = Vec::new();
    for (column, field) in header.iter().zip(row) {
        if let Some(size) = size(column) {
            let time = field
                .parse()
                .map_err(|_| format!("{field:?} for model {model:?} in column {column} is not a number"))?;
            times.push((size, time));
        }
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "# from somewhere\nmodel,weights_mb,b1_ms,b2_ms\nsmall,1,0.5,0.75\nbroken,1,x,2\n";

    #[test]
    fn a_row_is_found_by_name() {
        assert_eq!(parse(TABLE, "small"), Ok(vec![(1, 0.5), (2, 0.75)]));
    }

    #[test]
    fn what_is_missing_is_named() {
        assert_eq!(
            parse(TABLE, "large").unwrap_err(),
            "there is no model \"large\": give one of the first column as `row`"
        );
        assert_eq!(parse(TABLE, "broken").unwrap_err(), "\"x\" for model \"broken\" in column b1_ms is not a number");
        assert!(parse("a,b\n", "small").unwrap_err().starts_with("the first line must name"));
    }
}
