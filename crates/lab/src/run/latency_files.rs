//! Files of latencies: one line for each model, with a column `b<size>_ms` for each batch size (and perhaps
//! `b<size>_p99_ms` and `b<size>_beside_ms`), or with the line `alpha_ms * b + beta_ms`; perhaps with columns `slo_ms`
//! and `weights_mb`.

use crate::LabError;
use std::path::Path;

/// The batch sizes and times in milliseconds of one model in such a file, from the columns that end so.
pub(crate) fn batch_times(path: &Path, model: &str, ending: &str) -> Result<Vec<(u32, f64)>, LabError> {
    let text = std::fs::read_to_string(path).map_err(|reason| LabError::Read { path: path.to_owned(), reason })?;
    parse(&text, model, ending).map_err(|message| LabError::value(format!("{}: {message}", path.display())))
}

/// One model of a file.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Row {
    pub(crate) model: String,
    /// `alpha_ms` and `beta_ms`; absent where the file has a time for each batch size instead.
    pub(crate) line: Option<(f64, f64)>,
    pub(crate) slo_ms: Option<f64>,
    pub(crate) weights_mb: Option<f64>,
}

/// All models of a file with the columns `model`, `alpha_ms`, `beta_ms` and `slo_ms`, or `model`, `b1_ms` and so on, in
/// any order.
pub(crate) fn rows(path: &Path) -> Result<Vec<Row>, LabError> {
    let text = std::fs::read_to_string(path).map_err(|reason| LabError::Read { path: path.to_owned(), reason })?;
    parse_rows(&text).map_err(|message| LabError::value(format!("{}: {message}", path.display())))
}

fn parse_rows(text: &str) -> Result<Vec<Row>, String> {
    let mut lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let header: Vec<&str> = lines.next().unwrap_or_default().split(',').map(str::trim).collect();
    let place = |name: &str| header.iter().position(|column| *column == name);
    let column = |name: &str| place(name).ok_or_else(|| format!("the first line must name a column `{name}`"));
    let model = column("model")?;
    // A line is a file's only time, so that its columns must all be there; a file of batch sizes has them anyway.
    let by_size = place("b1_ms").is_some();
    let line = if by_size { None } else { Some((column("alpha_ms")?, column("beta_ms")?)) };
    let slo = if by_size { place("slo_ms") } else { Some(column("slo_ms")?) };
    let row = |text: &str| {
        let fields: Vec<&str> = text.split(',').map(str::trim).collect();
        let number = |column: usize| {
            let field = fields.get(column).copied().unwrap_or_default();
            let parsed = field.parse::<f64>().ok().filter(|number| number.is_finite());
            parsed.ok_or_else(|| format!("{field:?} in column {} of {text:?} is not a number", header[column]))
        };
        Ok(Row {
            model: fields.get(model).copied().unwrap_or_default().to_owned(),
            line: line.map(|(alpha, beta)| Ok::<_, String>((number(alpha)?, number(beta)?))).transpose()?,
            slo_ms: slo.map(number).transpose()?,
            weights_mb: place("weights_mb").map(number).transpose()?,
        })
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
        let row = Row { model: "small".into(), line: Some((0.5, 2.5)), slo_ms: Some(20.0), weights_mb: None };
        assert_eq!(parse_rows(text), Ok(vec![row]));
        assert_eq!(parse_rows("model,alpha_ms\n").unwrap_err(), "the first line must name a column `beta_ms`");
        assert_eq!(
            parse_rows("model,alpha_ms,beta_ms,slo_ms\nsmall,1,,3\n").unwrap_err(),
            "\"\" in column beta_ms of \"small,1,,3\" is not a number"
        );
    }

    #[test]
    fn files_with_a_time_for_each_size_have_rows_too() {
        let text = "model,weights_mb,b1_ms,b2_ms\nsmall,31.8,0.5,0.75\nlarge,102,1,2\n";
        let row =
            |model: &str, weights| Row { model: model.into(), line: None, slo_ms: None, weights_mb: Some(weights) };
        assert_eq!(parse_rows(text), Ok(vec![row("small", 31.8), row("large", 102.0)]));
        assert!(parse_rows("model,weights_mb,b1_ms\nsmall,heavy,1\n").unwrap_err().contains("\"heavy\" in column"));
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
