//! Keys with lists and tables as values: more methods of [`DeclaredKey`].

use std::collections::BTreeMap;

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::declarations::ShownKey;
use super::entry::{DeclaredKey, number, quote, read_secret, read_text};
use super::nearest::unknown_word;
use super::reader::ConfigSection;
use super::report::found;
use super::report::join;
use super::units;
use crate::secret::Secret;

/// Chapter number of tables in one line, which the reference shows as a single value.
const INLINE: usize = usize::MAX;

impl<'r> DeclaredKey<'r> {
    /// A list of text, empty by default; every item goes through `parse`.
    pub(super) fn list<T>(self, parse: impl Fn(&str) -> Result<T, String>) -> Vec<T> {
        self.document("list of text", ShownKey::Default("[]".to_owned()));
        self.items(parse)
    }

    /// The same of any text.
    pub(super) fn texts(self) -> Vec<String> {
        self.list(|text| Ok(text.to_owned()))
    }

    /// An optional list of text.
    pub(super) fn optional_list<T>(
        self,
        example: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<Vec<T>> {
        self.document(
            "list of text",
            ShownKey::Unset(format!("[{}]", quote(example))),
        );
        self.value?;
        Some(self.items(parse))
    }

    /// A required list of text, not empty.
    pub(super) fn required_list<T>(
        self,
        example: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Vec<T> {
        let literal = format!("[{}]", quote(example));
        self.document("list of text, required", ShownKey::Example(literal.clone()));
        let empty = match self.value.map(Spanned::get_ref) {
            None => true,
            Some(DeValue::Array(items)) => items.is_empty(),
            Some(_) => false,
        };
        if empty {
            self.error(
                "needs at least one item",
                Some(&format!("for example {} = {literal}", self.name)),
            );
        }
        self.items(parse)
    }

    /// Secrets by name.
    pub(super) fn secrets(self) -> BTreeMap<String, Secret> {
        self.document("table of secrets", ShownKey::Default("{}".to_owned()));
        let mut out = BTreeMap::new();
        for (key, value) in self.members() {
            let path = join(&self.path, key);
            if let Some(secret) = read_secret(self.report, &path, value) {
                out.insert(key.to_owned(), secret);
            }
        }
        out
    }

    /// Whole numbers or sizes, by name.
    pub(super) fn numbers(self, known: &[&str], sizes: &[&str]) -> BTreeMap<String, u64> {
        let kind = format!("table of numbers or sizes: {}", known.join(", "));
        self.document(&kind, ShownKey::Default("{}".to_owned()));
        let mut out = BTreeMap::new();
        for (key, value) in self.members() {
            let path = join(&self.path, key);
            if !known.contains(&key) {
                self.report.error(&path, unknown_word(known, key), None);
                continue;
            }
            let read = match value.get_ref() {
                DeValue::Integer(integer) => number(integer).ok_or("not a whole number".to_owned()),
                DeValue::String(text) if sizes.contains(&key) => units::size(text).map_err(|_| {
                    "expected a whole number without quotes and units, or a size such as \"2GiB\""
                        .to_owned()
                }),
                DeValue::String(_) => {
                    Err("expected a whole number without quotes and units".to_owned())
                }
                _ if sizes.contains(&key) => Err(format!(
                    "expected a whole number or a size, found {}",
                    found(value)
                )),
                _ => Err(format!("expected a whole number, found {}", found(value))),
            };
            match read {
                Ok(number) => drop(out.insert(key.to_owned(), number as u64)),
                Err(what) => self.report.error(&path, what, None),
            }
        }
        out
    }

    /// An optional table written in one line; `shown` is its entry in the reference.
    pub(super) fn inline<T>(
        self,
        shown: ShownKey,
        body: impl FnOnce(&mut ConfigSection<'r>) -> T,
    ) -> Option<T> {
        self.document("table, no default", shown);
        self.table(body)
    }

    /// As [`inline`](Self::inline), without an entry in the reference.
    pub(super) fn table<T>(self, body: impl FnOnce(&mut ConfigSection<'r>) -> T) -> Option<T> {
        let table = self.one_table()?;
        Some(ConfigSection::read(
            self.report,
            self.path,
            Some(table),
            INLINE,
            body,
        ))
    }

    /// Whether the file has text as the value.
    pub(super) fn is_text(&self) -> bool {
        self.value.is_some_and(|value| value.get_ref().is_str())
    }

    /// An optional table or list of tables; `shown` is the entry in the reference.
    pub(super) fn inline_or_list<T>(
        self,
        shown: ShownKey,
        body: impl FnMut(&mut ConfigSection<'r>) -> T,
    ) -> Vec<T> {
        self.document("table or list of tables, no default", shown);
        match self.value.map(Spanned::get_ref) {
            Some(DeValue::Array(items)) => self.tables(items, body),
            _ => self.table(body).into_iter().collect(),
        }
    }

    /// A table written in one line; a missing one is read as empty.
    pub(super) fn inline_or_empty<T>(
        self,
        shown: ShownKey,
        body: impl FnOnce(&mut ConfigSection<'r>) -> T,
    ) -> T {
        self.document("table", shown);
        let table = self.one_table();
        ConfigSection::read(self.report, self.path, table, INLINE, body)
    }

    /// Tables written in one line each.
    pub(super) fn inline_list<T>(
        self,
        body: impl FnMut(&mut ConfigSection<'r>) -> Option<T>,
    ) -> Vec<T> {
        self.document("list of tables", ShownKey::Default("[]".to_owned()));
        let Some(value) = self.value else {
            return Vec::new();
        };
        let Some(items) = value.get_ref().as_array() else {
            self.error(
                format!("expected a list of tables, found {}", found(value)),
                Some(&format!("write {} = [{{ … }}]", self.name)),
            );
            return Vec::new();
        };
        self.tables(items, body).into_iter().flatten().collect()
    }

    fn tables<T>(
        &self,
        items: &'r DeArray<'r>,
        mut body: impl FnMut(&mut ConfigSection<'r>) -> T,
    ) -> Vec<T> {
        let mut out = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let path = format!("{}[{index}]", self.path);
            if let Some(table) = item.get_ref().as_table() {
                let read = ConfigSection::read(self.report, path, Some(table), INLINE, &mut body);
                out.push(read);
            } else {
                let what = format!("expected a table, found {}", found(item));
                let hint = format!("write {} = [{{ … }}], with each one in braces", self.name);
                self.report.error(&path, what, Some(&hint));
            }
        }
        out
    }

    fn items<T>(self, parse: impl Fn(&str) -> Result<T, String>) -> Vec<T> {
        let Some(value) = self.value else {
            return Vec::new();
        };
        let Some(items) = value.get_ref().as_array() else {
            self.error(
                format!("expected a list of text, found {}", found(value)),
                Some(&format!(
                    "write {} = [\"…\"], with each one in quotes",
                    self.name
                )),
            );
            return Vec::new();
        };
        let mut out = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let path = format!("{}[{index}]", self.path);
            out.extend(read_text(self.report, &path, item, "text", &parse));
        }
        out
    }

    fn one_table(&self) -> Option<&'r DeTable<'r>> {
        let value = self.value?;
        let table = value.get_ref().as_table();
        if table.is_none() {
            self.error(
                format!("expected a table, found {}", found(value)),
                Some(&format!(
                    "write {} = {{ key = \"…\" }}, with its own keys",
                    self.name
                )),
            );
        }
        table
    }

    fn members(&self) -> impl Iterator<Item = (&'r str, &'r Spanned<DeValue<'r>>)> + use<'r> {
        self.one_table()
            .into_iter()
            .flat_map(|table| table.iter())
            .map(|(key, value)| (&**key.get_ref(), value))
    }
}
