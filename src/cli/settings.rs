//! The settings of `serve` as flags, made from the one table; and the reading of file, variables and flags together.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use crate::config::{Config, ConfigErrors, ELSEWHERE, HomeDirs, Kind, Raw, SETTINGS, Setting, check};

/// Every setting as given on the command line.
#[derive(Clone, Debug, Default)]
pub struct SettingsArgs {
    file: Option<PathBuf>,
    flags: Vec<(&'static str, Vec<String>)>,
    /// Flags that are none here, but that people try.
    misnamed: Vec<&'static str>,
}

impl SettingsArgs {
    /// Reads file, variables and flags, and checks the result.
    ///
    /// # Errors
    /// Everything that is wrong.
    pub fn config(&self) -> Result<Config, ConfigErrors> {
        let mut raw = Raw::default();
        let file = self.file.clone().or_else(|| std::env::var_os("FORETOKEN_CONFIG").map(PathBuf::from));
        if let Some(file) = file {
            raw.file(&file);
        }
        let named =
            std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        raw.variables(named.filter(|(name, _)| name != "FORETOKEN_CONFIG"));
        raw.flags(self.flags.iter().cloned());
        raw.misnamed(self.misnamed.iter().copied());
        check(raw, &HomeDirs::from_env())
    }
}

impl FromArgMatches for SettingsArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut args = SettingsArgs::default();
        args.update_from_arg_matches(matches)?;
        Ok(args)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.file = matches.get_one::<PathBuf>("config").cloned();
        self.misnamed
            .extend(ELSEWHERE.iter().map(|(name, _)| *name).filter(|name| matches.get_many::<String>(name).is_some()));
        for setting in SETTINGS {
            if let Some(values) = matches.get_many::<String>(setting.key) {
                self.flags.push((setting.key, values.cloned().collect()));
            }
        }
        Ok(())
    }
}

impl Args for SettingsArgs {
    fn augment_args(command: Command) -> Command {
        let file = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .help("Configuration file (TOML; keys are the flags with underscores) [variable: FORETOKEN_CONFIG]");
        let command = SETTINGS.iter().fold(command.arg(file), |command, setting| command.arg(flag(setting)));
        // Known only to be refused with a hint.
        let hidden =
            |name: &'static str| Arg::new(name).long(name).num_args(0..=1).action(ArgAction::Append).hide(true);
        ELSEWHERE.iter().fold(command, |command, (name, _)| command.arg(hidden(name)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn flag(setting: &'static Setting) -> Arg {
    let default = match setting.default {
        "" => String::new(),
        default => format!(" [default: {default}]"),
    };
    let also = setting.also.iter().map(|name| format!(", {name}")).collect::<String>();
    let unit = if setting.unit.is_empty() { String::new() } else { format!(", in {}", setting.unit) };
    let values = match setting.kind {
        Kind::Text | Kind::List => String::new(),
        _ => format!(" ({}{unit})", setting.values()),
    };
    let help = format!("{}{values}{default} [variable: {}{also}]", setting.help, setting.variable());
    let arg = Arg::new(setting.key).long(setting.flag()).help(help).allow_hyphen_values(true);
    match setting.kind {
        Kind::List => arg.value_name("ADDRESS:PORT").action(ArgAction::Append),
        Kind::Flag => arg.value_name("BOOL").num_args(0..=1).default_missing_value("true").require_equals(true),
        Kind::Text => arg.value_name(if setting.unit.is_empty() { "TEXT" } else { setting.unit }),
        Kind::Choice(_) => arg.value_name("WORD"),
        Kind::Integer(..) | Kind::Number(..) | Kind::Interval(..) => arg.value_name("N"),
    }
}
