//! The reference of `serve`'s settings, from the same declarations as its help.

#[cfg(test)]
mod tests {
    use crate::CommandLine;
    use clap::CommandFactory;
    use std::fmt::Write;
    use std::path::Path;

    fn reference() -> String {
        let command = CommandLine::command();
        let serve = command.find_subcommand("serve").unwrap();
        let mut text = String::from(
            "# Settings of `punctual serve`\n\n\
             Each can be given as a flag, as an environment variable, or in the TOML file of `--config` (there by the flag's \
             name without the dashes, `http-port = 8000`); they count in this order. This page is written by a test from the \
             declarations in `crates/cli/src/options.rs`: `UPDATE_DOCS=1 cargo nextest run -p cli`.\n\n\
             | flag | environment | meaning |\n|---|---|---|\n",
        );
        for argument in serve.get_arguments().filter(|argument| argument.get_id() != "help") {
            let flag = argument.get_long().unwrap();
            let value = argument.get_value_names().map_or("", |names| names[0].as_str());
            let env = argument.get_env().and_then(|env| env.to_str()).unwrap_or_default();
            let help = argument.get_long_help().or(argument.get_help()).unwrap().to_string();
            writeln!(text, "| `--{flag} {value}` | `{env}` | {} |", help.replace('\n', " ").replace('|', "\\|"))
                .unwrap();
        }
        text
    }

    #[test]
    fn the_page_of_settings_is_up_to_date() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, reference()).unwrap();
        }
        let page = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(page == reference(), "docs/configuration.md is out of date: UPDATE_DOCS=1 cargo nextest run -p cli");
    }

    #[test]
    fn the_command_line_is_well_formed() {
        CommandLine::command().debug_assert();
    }
}
