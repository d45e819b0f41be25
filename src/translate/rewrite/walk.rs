//! Where names and URIs stand, by kind of object.

use std::borrow::Cow;

use crate::protocol::json::{self, JsonScanner, RawString, WalkStop};
use crate::protocol::methods::ListKind;
use crate::translate::naming::{NamePrefix, clean};

use super::SpliceSet;

/// Longest title of an item that is shown, in characters.
const MAX_ITEM_TITLE: usize = 256;

/// Walk over a JSON text of one upstream that collects the splices for its names and URIs.
#[derive(Debug)]
pub(crate) struct RewriteWalk<'t> {
    prefix: &'t NamePrefix,
    pub(crate) splices: SpliceSet<'t>,
}

/// Moves over an object that is read, or over anything else unread.
pub(super) fn object<'t>(
    scanner: &mut JsonScanner<'t>,
    each: impl FnMut(&mut JsonScanner<'t>, &str) -> Result<bool, WalkStop>,
) -> Result<(), WalkStop> {
    let mut each = each;
    if scanner.peek() != Some(b'{') {
        return Ok(scanner.value().map(drop)?);
    }
    scanner.members(|scanner, name| each(scanner, name))
}

/// Moves over an array, or over anything else unread.
fn array<'t>(
    scanner: &mut JsonScanner<'t>,
    each: impl FnMut(&mut JsonScanner<'t>) -> Result<(), WalkStop>,
) -> Result<(), WalkStop> {
    if scanner.peek() != Some(b'[') {
        return Ok(scanner.value().map(drop)?);
    }
    scanner.array(each)
}

impl<'t> RewriteWalk<'t> {
    pub(crate) fn new(prefix: &'t NamePrefix) -> Self {
        Self {
            prefix,
            splices: SpliceSet::default(),
        }
    }

    /// Maps a tool's or prompt's name.
    pub(super) fn name(&mut self, raw: RawString<'t>) -> Result<(), WalkStop> {
        let original = raw.decode()?;
        match self
            .prefix
            .name_insertion(&original)
            .filter(|_| !raw.is_escaped())
        {
            Some(mark) => self
                .splices
                .insert(raw.inner_span().start, Cow::Borrowed(mark)),
            None => self.requote(raw, &self.prefix.name(&original)),
        }
        Ok(())
    }

    /// Maps a URI or a template.
    pub(super) fn uri(&mut self, raw: RawString<'t>) -> Result<(), WalkStop> {
        let original = raw.decode()?;
        match self.prefix.uri_insertion(&original) {
            None => {}
            Some((at, mark)) if !raw.is_escaped() => {
                self.splices
                    .insert(raw.inner_span().start + at, Cow::Borrowed(mark));
            }
            Some(_) => self.requote(raw, &self.prefix.uri(&original)),
        }
        Ok(())
    }

    /// Says whose logger it is.
    pub(super) fn logger(&mut self, raw: RawString<'t>) -> Result<(), WalkStop> {
        let shown = self.prefix.logger(&raw.decode()?);
        self.requote(raw, &shown);
        Ok(())
    }

    /// Takes hidden characters out of a title, and what is too long of it.
    fn title(&mut self, raw: RawString<'t>) -> Result<(), WalkStop> {
        if !raw.is_escaped() && raw.inner().len() <= MAX_ITEM_TITLE && raw.inner().is_ascii() {
            return Ok(());
        }
        let title = raw.decode()?;
        let shown = clean(&title, MAX_ITEM_TITLE);
        if shown != title {
            self.requote(raw, &shown);
        }
        Ok(())
    }

    fn requote(&mut self, raw: RawString<'t>, text: &str) {
        self.splices.replace(raw.span(), json::quote(text).into());
    }

    /// Walks into one member of an object.
    pub(super) fn in_member(
        &mut self,
        scanner: &mut JsonScanner<'t>,
        member: &str,
        mut walk: impl FnMut(&mut Self, &mut JsonScanner<'t>) -> Result<(), WalkStop>,
    ) -> Result<(), WalkStop> {
        object(scanner, |scanner, name| {
            let concerned = name == member;
            if concerned {
                walk(self, scanner)?;
            }
            Ok(concerned)
        })
    }

    /// Maps one member of an object, where it is a string.
    pub(super) fn in_string(
        &mut self,
        scanner: &mut JsonScanner<'t>,
        member: &str,
        mut map: impl FnMut(&mut Self, RawString<'t>) -> Result<(), WalkStop>,
    ) -> Result<(), WalkStop> {
        self.in_member(scanner, member, |walk, scanner| {
            match scanner.string_value()? {
                Some(raw) => map(walk, raw),
                None => Ok(()),
            }
        })
    }

    /// A `tools/call` result.
    pub(super) fn call_result(&mut self, scanner: &mut JsonScanner<'t>) -> Result<(), WalkStop> {
        object(scanner, |scanner, name| {
            match name {
                "content" => self.content(scanner)?,
                "_meta" => self.meta(scanner)?,
                _ => return Ok(false),
            }
            Ok(true)
        })
    }

    /// `elicitation/create` parameters; `title`, the inside of a JSON string, says who asks.
    pub(super) fn elicitation(
        &mut self,
        scanner: &mut JsonScanner<'t>,
        title: &str,
    ) -> Result<(), WalkStop> {
        object(scanner, |scanner, name| {
            let concerned = matches!(name, "message" | "elicitationId");
            if concerned && let Some(raw) = scanner.string_value()? {
                if name == "message" {
                    self.splices
                        .insert(raw.inner_span().start, title.to_owned().into());
                } else {
                    self.elicitation_id(raw)?;
                }
            }
            Ok(concerned)
        })
    }

    /// Maps the id of an elicitation.
    pub(super) fn elicitation_id(&mut self, raw: RawString<'t>) -> Result<(), WalkStop> {
        let shown = self.prefix.elicitation(&raw.decode()?);
        self.requote(raw, &shown);
        Ok(())
    }

    /// `data` of an error about what the upstream knows as the first of `asked`, and the client as
    /// the second; `title` as in [`Self::elicitation`].
    pub(super) fn error_data(
        &mut self,
        scanner: &mut JsonScanner<'t>,
        asked: Option<(&str, &str)>,
        title: &str,
    ) -> Result<(), WalkStop> {
        object(scanner, |scanner, name| {
            match name {
                "uri" => {
                    let raw = scanner.string_value()?;
                    if let (Some(raw), Some((sent, shown))) = (raw, asked)
                        && raw.decode()? == sent
                    {
                        self.requote(raw, shown);
                    }
                }
                "elicitations" => array(scanner, |scanner| self.elicitation(scanner, title))?,
                _ => return Ok(false),
            }
            Ok(true)
        })
    }

    /// `sampling/createMessage` parameters: a merged endpoint shares no context of other servers.
    pub(super) fn sampling(&mut self, scanner: &mut JsonScanner<'t>) -> Result<(), WalkStop> {
        object(scanner, |scanner, name| {
            match name {
                "messages" => self.messages(scanner)?,
                "includeContext" => self.splices.replace(scanner.value()?, "\"none\"".into()),
                _ => return Ok(false),
            }
            Ok(true)
        })
    }

    /// Messages of a prompt or of a sampling request.
    pub(super) fn messages(&mut self, scanner: &mut JsonScanner<'t>) -> Result<(), WalkStop> {
        array(scanner, |scanner| {
            self.in_member(scanner, "content", Self::content)
        })
    }

    /// Walks over one content block, or an array of blocks.
    fn content(&mut self, scanner: &mut JsonScanner<'t>) -> Result<(), WalkStop> {
        if scanner.peek() == Some(b'[') {
            array(scanner, |scanner| self.block(scanner))
        } else {
            self.block(scanner)
        }
    }

    fn block(&mut self, scanner: &mut JsonScanner<'t>) -> Result<(), WalkStop> {
        let (mut kind, mut link, mut embedded) = (None, None, None);
        object(scanner, |scanner, name| {
            match name {
                "type" => kind = scanner.string_value()?,
                "uri" => link = scanner.string_value()?,
                "resource" => object(scanner, |scanner, name| {
                    let concerned = name == "uri";
                    if concerned {
                        embedded = scanner.string_value()?;
                    }
                    Ok(concerned)
                })?,
                // A tool result inside a sampling message.
                "content" => self.content(scanner)?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        let uri = match kind.map(RawString::decode).transpose()?.as_deref() {
            Some("resource_link") => link,
            Some("resource") => embedded,
            _ => None,
        };
        uri.map_or(Ok(()), |raw| self.uri(raw))
    }

    /// What `resources/read` gives, or the files of a skill.
    pub(super) fn contents(&mut self, scanner: &mut JsonScanner<'t>) -> Result<(), WalkStop> {
        array(scanner, |scanner| self.in_string(scanner, "uri", Self::uri))
    }

    /// All items of a list.
    pub(super) fn items(
        &mut self,
        scanner: &mut JsonScanner<'t>,
        kind: ListKind,
    ) -> Result<(), WalkStop> {
        array(scanner, |scanner| self.item(scanner, kind).map(drop))
    }

    /// One item of a list; what names it, if anything does. Of a skill only URIs change: its
    /// frontmatter and digests are what hosts verify (SPEC N-05).
    pub(crate) fn item(
        &mut self,
        scanner: &mut JsonScanner<'t>,
        kind: ListKind,
    ) -> Result<Option<RawString<'t>>, WalkStop> {
        let mut key = None;
        object(scanner, |scanner, name| {
            if name == kind.item_key() {
                key = scanner.string_value()?;
            } else if name == "resources" && kind == ListKind::Skills {
                self.contents(scanner)?;
            } else if name == "_meta" {
                self.meta(scanner)?;
            } else if name == "title" || name == "name" {
                let title = scanner.string_value()?;
                title.map_or(Ok(()), |raw| self.title(raw))?;
            } else {
                return Ok(false);
            }
            Ok(true)
        })?;
        match (key, kind) {
            (None, _) => {}
            (Some(raw), ListKind::Tools | ListKind::Prompts) => self.name(raw)?,
            (Some(raw), ListKind::Resources | ListKind::Templates | ListKind::Skills) => {
                self.uri(raw)?;
            }
        }
        Ok(key)
    }

    /// The resource that shows a tool's result, under both spellings and that of `ChatGPT` (Apps SDK). Spec: MCP Apps.
    fn meta(&mut self, scanner: &mut JsonScanner<'t>) -> Result<(), WalkStop> {
        object(scanner, |scanner, name| {
            match name {
                "ui" => self.in_string(scanner, "resourceUri", Self::uri)?,
                "ui/resourceUri" | "openai/outputTemplate" => {
                    let raw = scanner.string_value()?;
                    raw.map_or(Ok(()), |raw| self.uri(raw))?;
                }
                _ => return Ok(false),
            }
            Ok(true)
        })
    }
}
