//! Parses header values with parameters; ambiguous values are rejected.
#![deny(clippy::disallowed_methods, clippy::disallowed_types, clippy::float_arithmetic)]

use std::borrow::Cow;

use super::violation::excerpt;

/// The value of a parameter, as it is written in the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ParameterValue<'a> {
    Token(&'a str),
    /// The text between the quotes, with its escapes not decoded.
    Quoted(&'a str),
}

impl<'a> ParameterValue<'a> {
    /// Returns the value with its escapes not decoded.
    pub(super) fn raw(self) -> &'a str {
        match self {
            ParameterValue::Token(raw) | ParameterValue::Quoted(raw) => raw,
        }
    }

    /// Returns the value with its escapes decoded: those of browsers (`%22`, `%0D`, `%0A`), and a
    /// backslash before a quote or another backslash. All other characters stand for themselves.
    pub(super) fn text(self) -> Cow<'a, str> {
        let ParameterValue::Quoted(mut rest) = self else { return Cow::Borrowed(self.raw()) };
        if !rest.contains(['\\', '%']) {
            return Cow::Borrowed(rest);
        }
        let mut text = String::with_capacity(rest.len());
        while let Some(at) = rest.find(['\\', '%']) {
            text.push_str(&rest[..at]);
            rest = &rest[at..];
            let known = ESCAPES.iter().find(|(escape, _)| {
                let start = rest.as_bytes().get(..escape.len());
                start.is_some_and(|s| s.eq_ignore_ascii_case(escape.as_bytes()))
            });
            let (length, plain) = known.map_or((1, &rest[..1]), |(e, plain)| (e.len(), plain));
            text.push_str(plain);
            rest = &rest[length..];
        }
        text.push_str(rest);
        Cow::Owned(text)
    }
}

const ESCAPES: [(&str, &str); 5] =
    [("\\\"", "\""), ("\\\\", "\\"), ("%22", "\""), ("%0d", "\r"), ("%0a", "\n")];

/// A header value and its parameters, whose names are unique.
#[derive(Debug)]
pub(super) struct HeaderParameters<'a> {
    /// The text before the first parameter.
    pub(super) main_value: &'a str,
    /// The parameters' names in lower case, and their values.
    parameters: Vec<(String, ParameterValue<'a>)>,
}

/// A header may have at most this many parameters; no legitimate header has more.
const PARAMETERS_MAX: usize = 16;

impl<'a> HeaderParameters<'a> {
    /// Parses the value of a header.
    pub(super) fn parse(value: &'a str) -> Result<HeaderParameters<'a>, String> {
        let (first, mut rest) = value.split_at(value.find(';').unwrap_or(value.len()));
        let mut read =
            HeaderParameters { main_value: first.trim_matches(WHITESPACE), parameters: Vec::new() };
        while let Some(after) = rest.strip_prefix(';') {
            rest = after.trim_start_matches(WHITESPACE);
            if rest.is_empty() || rest.starts_with(';') {
                continue;
            }
            let (name, value) = rest.split_at(token_length(rest));
            let Some(value) = value.strip_prefix('=').filter(|_| !name.is_empty()) else {
                return Err(format!("'{}' is no parameter", excerpt(rest)));
            };
            let name = name.to_ascii_lowercase();
            if read.get(&name).is_some() {
                return Err(format!("the parameter '{}' stands twice", excerpt(&name)));
            }
            let (written, after) = parse_value(value)
                .ok_or_else(|| format!("'{}' is no value of a parameter", excerpt(value)))?;
            read.parameters.push((name, written));
            rest = after.trim_start_matches(WHITESPACE);
            if !(rest.is_empty() || rest.starts_with(';')) {
                return Err(format!("'{}' stands after a parameter", excerpt(rest)));
            }
            if read.parameters.len() > PARAMETERS_MAX {
                return Err(format!("more than {PARAMETERS_MAX} parameters"));
            }
        }
        Ok(read)
    }

    /// Returns a parameter by its name, which is given in lower case.
    pub(super) fn get(&self, name: &str) -> Option<ParameterValue<'a>> {
        self.parameters.iter().find(|(n, _)| n == name).map(|(_, written)| *written)
    }

    /// Returns the names of the parameters, in lower case.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.parameters.iter().map(|(name, _)| &**name)
    }

    /// Whether the charset equals UTF-8 only for ASCII text; false if none is named. (Some clients
    /// name their charset whatever they send.)
    pub(super) fn is_ascii_only(&self) -> Result<bool, String> {
        let Some(charset) = self.get("charset") else { return Ok(false) };
        match &*charset.raw().to_ascii_lowercase() {
            "utf-8" | "utf8" => Ok(false),
            "us-ascii" | "ascii" | "iso-8859-1" | "latin1" | "windows-1252" => Ok(true),
            other => Err(format!("the charset is '{}', not utf-8", excerpt(other))),
        }
    }
}

pub(super) const WHITESPACE: [char; 2] = [' ', '\t'];

/// Returns the length of the token (RFC 9110) at the start of a text, 0 if there is none.
pub(super) fn token_length(text: &str) -> usize {
    let is_of_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    text.bytes().position(|b| !is_of_token(b)).unwrap_or(text.len())
}

/// Returns the parameter value at the start of a text, and the text after it; `None` if there is no
/// valid value.
fn parse_value(text: &str) -> Option<(ParameterValue<'_>, &str)> {
    let Some(inside) = text.strip_prefix('"') else {
        let (token, rest) = text.split_at(token_length(text));
        return (!token.is_empty()).then_some((ParameterValue::Token(token), rest));
    };
    let bytes = inside.as_bytes();
    let mut at = 0;
    loop {
        at += memchr::memchr2(b'"', b'\\', bytes.get(at..)?)?;
        if bytes[at] == b'"' {
            return Some((ParameterValue::Quoted(&inside[..at]), &inside[at + 1..]));
        }
        let escapes = matches!(bytes.get(at + 1), Some(b'"' | b'\\'));
        at += 1 + usize::from(escapes);
    }
}

/// Decodes a value that begins with its charset (RFC 5987); `None` if the charset is not UTF-8.
pub(super) fn decode_extended(value: &str) -> Result<Option<String>, String> {
    let wrong = || format!("'{}' is no value with a charset", excerpt(value));
    let (charset, rest) = value.split_once('\'').ok_or_else(wrong)?;
    let (_, encoded) = rest.split_once('\'').ok_or_else(wrong)?;
    if !charset.eq_ignore_ascii_case("utf-8") {
        return Ok(None);
    }
    let mut bytes = Vec::with_capacity(encoded.len());
    let mut rest = encoded.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        if *byte != b'%' {
            bytes.push(*byte);
            continue;
        }
        let Some(([high, low], after)) = rest.split_first_chunk() else { return Err(wrong()) };
        let digit = |b: &u8| char::from(*b).to_digit(16).and_then(|d| u8::try_from(d).ok());
        bytes.push(digit(high).ok_or_else(wrong)? << 4 | digit(low).ok_or_else(wrong)?);
        rest = after;
    }
    String::from_utf8(bytes).map(Some).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::token("a; x=y", "x", "y")]
    #[case::quoted("a; x=\"y z\"", "x", "y z")]
    #[case::name_in_capitals("a;X=y", "x", "y")]
    #[case::quote_inside(r#"a; x="y\"z""#, "x", "y\"z")]
    #[case::backslash_inside(r#"a; x="y\\""#, "x", "y\\")]
    #[case::backslash_of_a_path(r#"a; x="C:\new""#, "x", "C:\\new")]
    #[case::browsers_escapes("a; x=\"%22%0D%0a%41%\"", "x", "\"\r\n%41%")]
    #[case::no_escapes_in_a_token("a; x=%22", "x", "%22")]
    #[case::semicolon_inside("a; x=\"y; z=w\"", "x", "y; z=w")]
    #[case::beyond_ascii("a; x=\"%é\"", "x", "%é")]
    #[case::space_around("a ;\tx=y \t; z=w;", "z", "w")]
    #[case::empty("a; x=\"\"", "x", "")]
    fn a_parameter_is_read(#[case] value: &str, #[case] name: &str, #[case] expected: &str) {
        let read = HeaderParameters::parse(value).expect("sound");
        assert_eq!(read.main_value, "a");
        assert_eq!(read.get(name).map(ParameterValue::text).as_deref(), Some(expected));
    }

    #[rstest]
    #[case::twice("a; x=y; X=\"y\"")]
    #[case::no_value("a; x")]
    #[case::nothing_after_the_sign("a; x=")]
    #[case::space_before_the_sign("a; x =y")]
    #[case::space_after_the_sign("a; x= y")]
    #[case::no_name("a; =y")]
    #[case::quote_that_does_not_end("a; x=\"y")]
    #[case::quote_that_is_escaped(r#"a; x="y\""#)]
    #[case::after_a_quote("a; x=\"y\"z")]
    #[case::after_a_token("a; x=y z")]
    #[case::list_of_values("a; x=y, a; x=z")]
    #[case::far_too_many("a;b=1;c=1;d=1;e=1;f=1;g=1;h=1;i=1;j=1;k=1;l=1;m=1;n=1;o=1;p=1;q=1;r=1")]
    fn what_could_be_read_otherwise_is_refused(#[case] value: &str) {
        assert!(HeaderParameters::parse(value).is_err());
    }

    #[rstest]
    #[case::utf8("UTF-8''%e2%82%ac%20rates.png", Ok(Some("€ rates.png")))]
    #[case::with_a_language("utf-8'en'a", Ok(Some("a")))]
    #[case::another_charset("iso-8859-1''%a3", Ok(None))]
    #[case::no_charset("a", Err(()))]
    #[case::half_an_escape("utf-8''%4", Err(()))]
    #[case::no_escape("utf-8''%+4", Err(()))]
    #[case::not_utf8("utf-8''%ff", Err(()))]
    fn a_value_with_a_charset_is_read(
        #[case] value: &str,
        #[case] expected: Result<Option<&str>, ()>,
    ) {
        let read = decode_extended(value).map_err(|_| ());
        assert_eq!(read.as_ref().map(Option::as_deref), expected.as_ref().map(|e| *e));
    }
}
