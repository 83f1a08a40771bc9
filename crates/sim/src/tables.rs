//! Files of latencies: one line for each model, with a column `b<size>_ms` for each batch size (and perhaps `b<size>_p99_ms` and `b<size>_beside_ms`), or with
//! the line `alpha_ms * b + beta_ms`.

use crate::Error;
use std::path::Path;

/// The batch sizes and times in milliseconds of one model in such a file, from the columns that end so.
pub(crate) fn batch_times(path: &Path, model: &str, ending: &str) -> Result<Vec<(u32, f64)>, Error> {
    let text = std::fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    parse(&text, model, ending).map_err(|message| Error::value(format!("{}: {message}", path.display())))
}

/// One row of a file of lines.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct LineRow {
    pub(crate) model: String,
    pub(crate) alpha_ms: f64,
    pub(crate) beta_ms: f64,
    pub(crate) slo_ms: f64,
}

/// All rows of a file with the columns `model`, `alpha_ms`, `beta_ms` and `slo_ms`, in any order.
pub(crate) fn lines(path: &Path) -> Result<Vec<LineRow>, Error> {
    let text = std::fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    parse_lines(&text).map_err(|message| Error::value(format!("{}: {message}", path.display())))
}

fn parse_lines(text: &str) -> Result<Vec<LineRow>, String> {
    let mut lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let header: Vec<&str> = lines.next().unwrap_or_default().split(',').map(str::trim).collect();
    let column = |name: &str| {
        let found = header.iter().position(|column| *column == name);
        found.ok_or_else(|| format!("the first line must name a column `{name}`"))
    };
    let [model, alpha, beta, slo] = [column("model")?, column("alpha_ms")?, column("beta_ms")?, column("slo_ms")?];
    let row = |line: &str| {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let number = |column: usize| {
            let field = fields.get(column).copied().unwrap_or_default();
            let parsed = field.parse::<f64>().ok().filter(|number| number.is_finite());
            parsed.ok_or_else(|| format!("{field:?} in column {} of {line:?} is not a number", header[column]))
        };
        let model = fields.get(model).copied().unwrap_or_default().to_owned();
        Ok(LineRow { model, alpha_ms: number(alpha)?, beta_ms: number(beta)?, slo_ms: number(slo)? })
    };
    lines.map(row).collect()
}

fn parse(text: &str, model: &str, ending: &str) -> Result<Vec<(u32, f64)>, String> {
    let mut lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let header: Vec<&str> = lines.next().unwrap_or_default().split(',').map(str::trim).collect();
    let of = |column: &str, ending: &str| column.strip_prefix('b')?.strip_suffix(ending)?.parse::<u32>().ok();
    if header.first() != Some(&"model") || !header.iter().any(|column| of(column, "_ms").is_some()) {
        return Err("the first line must name the columns `model` and `b1_ms`, `b2_ms` and so on".into());
    }
    let row = lines.map(|line| line.split(',').map(str::trim).collect::<Vec<_>>()).find(|fields| fields[0] == model);
    let row = row.ok_or_else(|| format!("there is no model {model:?}: give one of the first column as `row`"))?;
    let mut times = Vec::new();
    for (column, field) in header.iter().zip(row) {
        if let Some(size) = of(column, ending) {
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

    const TABLE: &str =
        "# from somewhere\nmodel,weights_mb,b1_ms,b2_ms,b2_p99_ms\nsmall,1,0.5,0.75,0.8\nbroken,1,x,2,2\n";

    #[test]
    fn a_row_is_found_by_name() {
        assert_eq!(parse(TABLE, "small", "_ms"), Ok(vec![(1, 0.5), (2, 0.75)]));
        assert_eq!(parse(TABLE, "small", "_p99_ms"), Ok(vec![(2, 0.8)]));
    }

    #[test]
    fn lines_are_read_by_the_names_of_their_columns() {
        let text = "# from somewhere\nmodel,beta_ms,alpha_ms,slo_ms\nsmall,2.5,0.5,20\n";
        let row = LineRow { model: "small".into(), alpha_ms: 0.5, beta_ms: 2.5, slo_ms: 20.0 };
        assert_eq!(parse_lines(text), Ok(vec![row]));
        assert_eq!(parse_lines("model,alpha_ms\n").unwrap_err(), "the first line must name a column `beta_ms`");
        assert_eq!(
            parse_lines("model,alpha_ms,beta_ms,slo_ms\nsmall,1,,3\n").unwrap_err(),
            "\"\" in column beta_ms of \"small,1,,3\" is not a number"
        );
    }

    #[test]
    fn what_is_missing_is_named() {
        assert_eq!(
            parse(TABLE, "large", "_ms").unwrap_err(),
            "there is no model \"large\": give one of the first column as `row`"
        );
        assert_eq!(
            parse(TABLE, "broken", "_ms").unwrap_err(),
            "\"x\" for model \"broken\" in column b1_ms is not a number"
        );
        assert!(parse("a,b\n", "small", "_ms").unwrap_err().starts_with("the first line must name"));
    }
}
