//! Headers that mirror arguments of a tool call: parsing annotations in a tool's schema, encoding header
//! values, and comparing headers with arguments.
//! Spec: MCP 2026-07-28, Streamable HTTP, "Custom Headers from Tool Parameters"; SPEC M-30…M-33.

use std::borrow::Cow;

use http::{HeaderName, HeaderValue};

use super::header_value;
use super::headers::{HeaderError, MCP_PARAM_PREFIX};
use super::json::{self, JsonError, JsonScanner, WalkStop};
use super::number::DecimalNumber;

/// The annotation of a schema.
const ANNOTATION: &str = "x-mcp-header";
/// Annotations of one tool at most; real tools have a handful.
pub const MAX_ANNOTATIONS: usize = 64;

/// Keywords whose members are schemas under names of the author's choice.
const NAMED_SCHEMAS: [&str; 4] = [
    "$defs",
    "definitions",
    "dependentSchemas",
    "patternProperties",
];
/// Keywords with data as the value, not a schema.
const DATA: [&str; 4] = ["const", "default", "enum", "examples"];

/// The type of an annotated parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParamType {
    /// `string`
    String,
    /// `integer`
    Integer,
    /// `boolean`
    Boolean,
}

/// One annotated parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamHeader {
    /// From the arguments down, one member name per step.
    pub path: Vec<String>,
    /// Its declared type.
    pub kind: ParamType,
    /// The annotation, as the author spells it.
    pub token: String,
    /// `mcp-param-<token>`
    pub name: HeaderName,
}

/// The annotated parameters of one tool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ParamHeaders(Vec<ParamHeader>);

/// Why a tool's annotations are invalid. Such a tool is not shown (SPEC M-31).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AnnotationError {
    /// The schema cannot be read.
    #[error("the schema cannot be read: {0}")]
    Unreadable(JsonError),
    /// Not a string that can end a header name.
    #[error("{0:?} is no HTTP token")]
    NoToken(String),
    /// Two parameters, one header.
    #[error("{0:?} stands there twice")]
    Repeated(String),
    /// On something else than a string, an integer or a boolean.
    #[error("{0:?} is on a parameter that is no string, integer or boolean")]
    Type(String),
    /// Not reachable through `properties` alone.
    #[error("{0:?} is on something that is no property, or only a property in some cases")]
    Place(String),
    /// More than [`MAX_ANNOTATIONS`].
    #[error("more than {MAX_ANNOTATIONS} parameters are annotated")]
    TooMany,
}

/// Why a call and its headers do not agree.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderMismatch {
    /// The header is repeated or cannot be decoded.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The argument is there, the header is not.
    #[error("header {0} is missing")]
    Missing(HeaderName),
    /// They hold different values.
    #[error("header {0} does not match the argument that it mirrors")]
    Differs(HeaderName),
    /// The header is there, the argument is not.
    #[error("header {0} mirrors an argument that is not there")]
    Unexpected(HeaderName),
    /// Two parsers could read the arguments differently.
    #[error("the arguments are ambiguous: {0}")]
    Arguments(#[from] JsonError),
}

/// Whether any schema in this JSON text may have annotations; cheap, to leave most texts unread.
#[must_use]
pub fn may_annotate(text: &str) -> bool {
    // An escape could spell the keyword, too.
    text.contains(ANNOTATION) || text.contains("\\u")
}

impl ParamHeaders {
    /// Reads the annotations of a tool's `inputSchema` (JSON text). Spec: SPEC M-30.
    ///
    /// # Errors
    /// [`AnnotationError`] when any of them breaks a rule.
    pub fn read(input_schema: &str) -> Result<Self, AnnotationError> {
        if !may_annotate(input_schema) {
            return Ok(Self::default());
        }
        let mut scanner = JsonScanner::new(input_schema, json::MAX_DEPTH);
        let mut reader = SchemaWalk::default();
        if let Err(stop) = reader.schema(&mut scanner, Some(&mut Vec::new())) {
            let unreadable = AnnotationError::Unreadable(stop.at(scanner.offset()));
            return Err(reader.broken.unwrap_or(unreadable));
        }
        match reader.broken {
            Some(error) => Err(error),
            None => Ok(Self(reader.found)),
        }
    }

    /// Whether no parameter is annotated.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The annotated parameters.
    pub fn iter(&self) -> impl Iterator<Item = &ParamHeader> {
        self.0.iter()
    }

    /// Whether `name` is one of these headers.
    #[must_use]
    pub fn recognizes(&self, name: &HeaderName) -> bool {
        self.0.iter().any(|param| param.name == *name)
    }

    /// The headers that go with `arguments` (JSON text). Spec: SPEC M-32.
    ///
    /// # Errors
    /// When an object on the way to an annotated argument repeats a member.
    pub fn write(
        &self,
        arguments: Option<&str>,
    ) -> Result<Vec<(HeaderName, HeaderValue)>, JsonError> {
        let mut headers = Vec::new();
        for param in &self.0 {
            let value = at(arguments, &param.path)?.and_then(mirrored);
            if let Some(value) = value {
                headers.push((param.name.clone(), header_value::encode(&value)));
            }
        }
        Ok(headers)
    }

    /// Whether the headers of a request agree with its `arguments` (JSON text).
    /// Spec: SPEC M-04, M-18, M-33.
    ///
    /// # Errors
    /// The first [`HeaderMismatch`].
    pub fn check(
        &self,
        arguments: Option<&str>,
        headers: &[(HeaderName, HeaderValue)],
    ) -> Result<(), HeaderMismatch> {
        for param in &self.0 {
            let given = header_value::single(headers, &param.name)?;
            let argument = at(arguments, &param.path)?.filter(|text| *text != "null");
            match (argument, given) {
                (None, None) => {}
                (None, Some(_)) => return Err(HeaderMismatch::Unexpected(param.name.clone())),
                (Some(argument), given) => match (mirrored(argument), given) {
                    // No value that a header could hold: for the tool to refuse.
                    (None, None) => {}
                    (None, Some(_)) => return Err(HeaderMismatch::Differs(param.name.clone())),
                    (Some(_), None) => return Err(HeaderMismatch::Missing(param.name.clone())),
                    (Some(expected), Some(given)) => {
                        if !agree(argument, &expected, &given) {
                            return Err(HeaderMismatch::Differs(param.name.clone()));
                        }
                    }
                },
            }
        }
        Ok(())
    }
}

/// The value at a path of member names; `None` when there is none.
fn at<'a>(arguments: Option<&'a str>, path: &[String]) -> Result<Option<&'a str>, JsonError> {
    let mut here = arguments;
    for step in path {
        let Some(object) = here.filter(|text| text.starts_with('{')) else {
            return Ok(None);
        };
        let members = json::members(object)?;
        here = members
            .into_iter()
            .find(|(name, _)| name == step)
            .map(|(_, value)| value);
    }
    Ok(here)
}

/// What the header holds for an argument (JSON text); nothing for `null`, objects and arrays.
fn mirrored(argument: &str) -> Option<Cow<'_, str>> {
    match argument.as_bytes().first()? {
        b'"' => json::string(argument),
        b't' | b'f' => Some(Cow::Borrowed(argument)),
        b'-' | b'0'..=b'9' => {
            let plain = DecimalNumber::parse(argument).and_then(|number| number.integer());
            Some(plain.map_or(Cow::Borrowed(argument), Cow::Owned))
        }
        _ => None,
    }
}

/// Numbers are compared by value, everything else letter by letter. Spec: SPEC M-33.
fn agree(argument: &str, expected: &str, given: &str) -> bool {
    let is_number = argument.starts_with(|c: char| c == '-' || c.is_ascii_digit());
    expected == given
        || is_number
            && DecimalNumber::parse(given)
                .is_some_and(|given| DecimalNumber::parse(argument) == Some(given))
}

/// Walks a schema once.
#[derive(Debug, Default)]
struct SchemaWalk {
    found: Vec<ParamHeader>,
    /// The first rule that is broken.
    broken: Option<AnnotationError>,
}

/// Where a schema stands: its path from the root through `properties`, if there is one.
type SchemaPath<'p> = Option<&'p mut Vec<String>>;

impl SchemaWalk {
    /// Reads a schema, or an array of schemas, or moves over anything else.
    fn schema(
        &mut self,
        scanner: &mut JsonScanner<'_>,
        mut place: SchemaPath<'_>,
    ) -> Result<(), WalkStop> {
        match scanner.peek() {
            Some(b'{') => {}
            Some(b'[') => return scanner.array(|scanner| self.schema(scanner, None)),
            _ => return Ok(scanner.value().map(drop)?),
        }
        let text = scanner.text();
        let (mut annotation, mut kind) = (None, None);
        scanner.members(|scanner, name| {
            match &**name {
                ANNOTATION => annotation = Some(json::slice(text, scanner.value()?)),
                "type" => kind = Some(json::slice(text, scanner.value()?)),
                "properties" => self.named(scanner, place.as_deref_mut())?,
                word if NAMED_SCHEMAS.contains(&word) => self.named(scanner, None)?,
                word if DATA.contains(&word) => return Ok(false),
                _ => self.schema(scanner, None)?,
            }
            Ok(true)
        })?;
        if let Some(annotation) = annotation {
            let noted = self.annotated(annotation, kind, place.map(|path| path.clone()));
            if let Err(error) = noted {
                self.broken.get_or_insert(error);
            }
        }
        Ok(())
    }

    /// Reads an object whose members are schemas.
    fn named(
        &mut self,
        scanner: &mut JsonScanner<'_>,
        mut place: SchemaPath<'_>,
    ) -> Result<(), WalkStop> {
        if scanner.peek() != Some(b'{') {
            return self.schema(scanner, None);
        }
        scanner.members(|scanner, name| {
            match place.as_deref_mut() {
                None => self.schema(scanner, None)?,
                Some(path) => {
                    path.push(name.clone().into_owned());
                    self.schema(scanner, Some(&mut *path))?;
                    path.pop();
                }
            }
            Ok(true)
        })
    }

    fn annotated(
        &mut self,
        annotation: &str,
        kind: Option<&str>,
        path: Option<Vec<String>>,
    ) -> Result<(), AnnotationError> {
        let no_token = || AnnotationError::NoToken(shown(annotation));
        let token = json::string(annotation).ok_or_else(no_token)?.into_owned();
        if token.is_empty() {
            return Err(no_token());
        }
        let name = [MCP_PARAM_PREFIX, &token].concat();
        let name = HeaderName::try_from(name).map_err(|_| no_token())?;
        let Some(path) = path.filter(|path| !path.is_empty()) else {
            return Err(AnnotationError::Place(token));
        };
        let kind = match kind.and_then(json::string).as_deref() {
            Some("string") => ParamType::String,
            Some("integer") => ParamType::Integer,
            Some("boolean") => ParamType::Boolean,
            _ => return Err(AnnotationError::Type(token)),
        };
        if self.found.iter().any(|param| param.name == name) {
            return Err(AnnotationError::Repeated(token));
        }
        if self.found.len() >= MAX_ANNOTATIONS {
            return Err(AnnotationError::TooMany);
        }
        self.found.push(ParamHeader {
            path,
            kind,
            token,
            name,
        });
        Ok(())
    }
}

/// A piece of foreign JSON, short enough for a log line.
fn shown(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests;
