//! Reads a parsed file table by table; collects errors, or records the reference.
//!
//! A key is declared where it is read: [`ConfigSection::key`] gives its name and meaning, the method called on the
//! [`DeclaredKey`] its type and default; `read_keys!` does so for all keys of a struct. A key of the file that was never
//! declared is reported as unknown. Without a file the same code records every declaration, and `reference` writes them
//! down: code and documentation cannot disagree.

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::declarations::TableHeader;
use super::entry::DeclaredKey;
use super::nearest::nearest;
use super::reference::tables_with;
use super::report::{ReadReport, found, join};

/// The sample in the reference of tables whose names the operator chooses.
pub(super) struct SampleEntry {
    pub(super) name: &'static str,
    pub(super) doc: &'static str,
}

/// One table being read.
pub(super) struct ConfigSection<'r> {
    pub(super) report: &'r ReadReport<'r>,
    pub(super) path: String,
    table: Option<&'r DeTable<'r>>,
    asked: Vec<&'static str>,
    group_start: usize,
    /// The table of the reference that the keys belong to.
    chapter: usize,
}

impl<'r> ConfigSection<'r> {
    /// Reads the whole file; without a `table` only records the declarations.
    pub(super) fn read_root<T>(
        report: &'r ReadReport<'r>,
        table: Option<&'r DeTable<'r>>,
        body: impl FnOnce(&mut Self) -> T,
    ) -> T {
        Self::read(report, String::new(), table, 0, body)
    }

    /// Runs `body` over one table, then reports every key that `body` did not declare as unknown.
    pub(super) fn read<T>(
        report: &'r ReadReport<'r>,
        path: String,
        table: Option<&'r DeTable<'r>>,
        chapter: usize,
        body: impl FnOnce(&mut Self) -> T,
    ) -> T {
        let mut section = ConfigSection {
            report,
            path,
            table,
            asked: Vec::new(),
            group_start: 0,
            chapter,
        };
        let value = body(&mut section);
        section.report_unknown_keys();
        value
    }

    /// Declares a key and looks it up.
    pub(super) fn key(&mut self, name: &'static str, doc: &'static str) -> DeclaredKey<'r> {
        self.asked.push(name);
        DeclaredKey {
            report: self.report,
            path: join(&self.path, name),
            name,
            doc,
            value: self.value(name),
            chapter: self.chapter,
            chosen: false,
        }
    }

    /// Whether the table has this key.
    pub(super) fn has(&self, name: &str) -> bool {
        self.value(name).is_some()
    }

    /// Takes the keys declared since the last call.
    pub(super) fn take_group(&mut self) -> Vec<&'static str> {
        let group = self
            .asked
            .get(self.group_start..)
            .unwrap_or_default()
            .to_vec();
        self.group_start = self.asked.len();
        group
    }

    /// Whether the reference is being recorded.
    pub(super) fn is_recording(&self) -> bool {
        self.report.reference.is_some()
    }

    /// Reports an error at a path below this table, or at the table itself for an empty path.
    pub(super) fn error(&self, below: &str, what: impl Into<String>, hint: Option<&str>) {
        let dot = if below.is_empty() { "" } else { "." };
        self.report
            .error(&format!("{}{dot}{below}", self.path), what, hint);
    }

    /// Reads the table `[name]`; a missing table is read as empty.
    pub(super) fn table<T>(
        &mut self,
        name: &'static str,
        doc: &'static str,
        body: impl FnOnce(&mut ConfigSection<'r>) -> T,
    ) -> T {
        self.below(name, (TableHeader::Table, doc), body)
    }

    /// Reads the table `[name]`; `None` where it is missing.
    pub(super) fn optional_table<T>(
        &mut self,
        name: &'static str,
        doc: &'static str,
        body: impl FnOnce(&mut ConfigSection<'r>) -> T,
    ) -> Option<T> {
        if self.has(name) || self.is_recording() {
            return Some(self.below(name, (TableHeader::OptionalTable, doc), body));
        }
        self.asked.push(name);
        None
    }

    fn below<T>(
        &mut self,
        name: &'static str,
        (header, doc): (impl FnOnce(String) -> TableHeader, &'static str),
        body: impl FnOnce(&mut ConfigSection<'r>) -> T,
    ) -> T {
        self.asked.push(name);
        let path = join(&self.path, name);
        let table = self
            .value(name)
            .and_then(|value| self.as_table(&path, value));
        let chapter = self.open_chapter(header(path.clone()), doc);
        ConfigSection::read(self.report, path, table, chapter, body)
    }

    /// Reads every `[[name]]`.
    pub(super) fn tables<T>(
        &mut self,
        name: &'static str,
        doc: &'static str,
        mut body: impl FnMut(&mut ConfigSection<'r>) -> T,
    ) -> Vec<T> {
        self.asked.push(name);
        let path = join(&self.path, name);
        if self.is_recording() {
            let chapter = self.open_chapter(TableHeader::Tables(path.clone()), doc);
            return vec![ConfigSection::read(self.report, path, None, chapter, body)];
        }
        let value = self.value(name);
        let items = value.and_then(|value| self.as_array(&path, value));
        let items = items.into_iter().flatten();
        let read = items.enumerate().filter_map(|(index, item)| {
            let path = format!("{path}[{index}]");
            let table = self.as_table(&path, item)?;
            let table = Some(table);
            Some(ConfigSection::read(self.report, path, table, 0, &mut body))
        });
        read.collect()
    }

    /// Reads every `[name.<chosen>]`, in file order; `samples` are shown in the reference.
    pub(super) fn named<T>(
        &mut self,
        name: &'static str,
        samples: &[SampleEntry],
        mut body: impl FnMut(&str, &mut ConfigSection<'r>) -> T,
    ) -> Vec<T> {
        self.asked.push(name);
        let path = join(&self.path, name);
        if self.is_recording() {
            let mut out = Vec::new();
            for sample in samples {
                let path = join(&path, sample.name);
                let chapter = self.open_chapter(TableHeader::Table(path.clone()), sample.doc);
                let body = |section: &mut ConfigSection<'r>| body(sample.name, section);
                out.push(ConfigSection::read(self.report, path, None, chapter, body));
            }
            return out;
        }
        let value = self.value(name);
        let Some(table) = value.and_then(|value| self.as_table(&path, value)) else {
            return Vec::new();
        };
        let mut entries: Vec<_> = table.iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        let mut out = Vec::new();
        for (key, value) in entries {
            let path = join(&path, key.get_ref());
            if let Some(table) = self.as_table(&path, value) {
                let body = |section: &mut ConfigSection<'r>| body(key.get_ref(), section);
                out.push(ConfigSection::read(self.report, path, Some(table), 0, body));
            }
        }
        out
    }

    fn open_chapter(&self, header: TableHeader, doc: &'static str) -> usize {
        match &self.report.reference {
            Some(reference) => reference.borrow_mut().open(header, doc),
            None => 0,
        }
    }

    fn value(&self, name: &str) -> Option<&'r Spanned<DeValue<'r>>> {
        self.table?.get(name)
    }

    fn as_table(&self, path: &str, value: &'r Spanned<DeValue<'r>>) -> Option<&'r DeTable<'r>> {
        let table = value.get_ref().as_table();
        if table.is_none() {
            let is_of_names = matches!(path, "upstreams" | "endpoints");
            let hint = match path
                .strip_suffix(']')
                .and_then(|path| path.rsplit_once('['))
            {
                Some((list, _)) => format!("write [[{list}]], and its keys below"),
                None if is_of_names => format!("write [{path}.<name>], with a name of your choice"),
                None => format!("write [{path}], and its keys below"),
            };
            let what = format!("expected a table, found {}", found(value));
            self.report.error(path, what, Some(&hint));
        }
        table
    }

    fn as_array(&self, path: &str, value: &'r Spanned<DeValue<'r>>) -> Option<&'r DeArray<'r>> {
        let array = value.get_ref().as_array();
        if array.is_none() {
            let hint = format!("write [[{path}]]");
            let what = format!("expected tables, found {}", found(value));
            self.report.error(path, what, Some(&hint));
        }
        array
    }

    fn report_unknown_keys(&self) {
        for key in self.table.iter().flat_map(|table| table.keys()) {
            let name: &str = key.get_ref();
            if !self.asked.contains(&name) {
                let hint = self.hint(name);
                let path = join(&self.path, name);
                let (at, what) = (key.span().start, "unknown key".to_owned());
                self.report.error_at(at, &path, what, Some(&hint));
            }
        }
    }

    /// The hint for an unknown key: the known key with the most similar name.
    fn hint(&self, name: &str) -> String {
        let meant = MEANT.iter().find(|(said, _)| *said == name);
        let meant = meant.map(|(_, meant)| *meant);
        let meant = meant.filter(|meant| self.asked.contains(meant));
        let here = match meant.or_else(|| nearest(name, &self.asked)) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("known here: {}", self.asked.join(", ")),
        };
        let tables = tables_with(name).join(" or ");
        if tables.is_empty() {
            here
        } else if self.path.is_empty() {
            // Without an open table: a key that is valid in a table is not a spelling error.
            format!("did you mean `{name}` in {tables}?")
        } else {
            format!("{here} (`{name}` is a key of {tables})")
        }
    }
}

/// Makes a struct from the keys of a table, in the order of its fields. A field with a doc comment is the key of its name:
/// the comment is its meaning, the call the method of [`DeclaredKey`] for its type and default, so that
///
/// ```text
/// /// How long a session lasts.
/// idle: duration("30m"),
/// ```
///
/// stands for `idle: s.key("idle", "How long a session lasts.").duration("30m")`. A field without a doc comment is the call
/// of a function, and reads what needs more than one expression. After `;` stand fields with values of any kind, as in any
/// struct.
///
/// `s => let { … }` reads keys that are no fields into variables. A call may use the variables above it. `s =>` with a
/// single key is its value.
macro_rules! read_keys {
    ($section:ident => let {
        $(
            $(#[doc = $doc:tt])*
            $name:ident: $($read:ident)::+ ($($given:tt)*) $(.$then:ident($($other:tt)*))?,
        )+
    }) => {
        $(
            let $name = read_keys!(@value $section $name [$($doc)*] $($read)::+ ($($given)*))
                $(.$then($($other)*))?;
        )+
    };
    ($section:ident => $(#[doc = $doc:tt])+ $name:ident: $($call:tt)+) => {
        read_keys!(@value $section $name [$($doc)+] $($call)+)
    };
    ($section:ident => $type:ident {
        $(
            $(#[doc = $doc:tt])*
            $name:ident: $($read:ident)::+ ($($given:tt)*) $(.$then:ident($($other:tt)*))?,
        )*
        $(; $($rest:tt)*)?
    }) => {
        $type {
            $(
                $name: read_keys!(@value $section $name [$($doc)*] $($read)::+ ($($given)*))
                    $(.$then($($other)*))?,
            )*
            $($($rest)*)?
        }
    };
    (@value $section:ident $name:ident [] $($call:tt)+) => {
        $($call)+
    };
    (@value $section:ident $name:ident [$($doc:tt)+] $($call:tt)+) => {
        // Each line of a doc comment begins with a blank.
        $section.key(stringify!($name), concat!($($doc),+).trim_start()).$($call)+
    };
}
pub(super) use read_keys;

/// Keys used by other programs, and their equivalents here.
const MEANT: [(&str, &str); 14] = [
    ("mcpServers", "upstreams"),
    ("mcp_servers", "upstreams"),
    ("servers", "upstreams"),
    ("backends", "upstreams"),
    ("cmd", "command"),
    ("program", "command"),
    ("environment", "env"),
    ("working_directory", "cwd"),
    ("directory", "cwd"),
    ("type", "transport"),
    ("port", "listen"),
    ("address", "listen"),
    ("jwks_uri", "jwks_file"),
    ("timeout", "total_timeout"),
];
