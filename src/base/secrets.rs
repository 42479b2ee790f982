//! Texts without what opens a door: for whatever leaves the places where a job's own words belong, such as events, spans
//! and what is sent to those who help.

/// What stands in the place of a secret.
pub const REDACTED: &str = "REDACTED";

/// Words that say that a secret follows, also inside of longer ones.
const WORDS: [&str; 10] = [
    "token",
    "secret",
    "passw",
    "api_key",
    "apikey",
    "api-key",
    "credential",
    "authorization",
    "private_key",
    // `X-Amz-Signature=`, `X-Goog-Signature=`, `Signature=`.
    "signature",
];

/// Names of an address's parameters that say the same, and as words mean other things: `?sig=` signs one.
const PARAMETERS: [&str; 8] =
    ["sig", "key", "auth", "pwd", "pass", "policy", "awsaccesskeyid", "googleaccessid"];

/// A text without what looks like a secret: the known ones; what follows `token=`, `"password": "` and the like;
/// `Bearer …`, join tokens, private keys, users and passwords in addresses.
pub fn scrub(text: &str, known: &[String]) -> String {
    let mut text = text.to_owned();
    for secret in known {
        text = text.replace(secret.as_str(), REDACTED);
    }
    // Each rule needs one of these: most texts have none.
    let lower = text.to_ascii_lowercase();
    if !lower.contains(['=', ':'])
        && !["stl1-", "bearer ", "basic ", "-----begin "].iter().any(|w| lower.contains(w))
    {
        return text;
    }
    let text = keys(&text);
    let lower = text.to_ascii_lowercase();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        match secret_at(&text, &lower, at) {
            Some((begin, end)) if end > begin => {
                out.push_str(&text[at..begin]);
                out.push_str(REDACTED);
                at = end;
            }
            _ => {
                let step = text[at..].chars().next().map_or(1, char::len_utf8);
                out.push_str(&text[at..at + step]);
                at += step;
            }
        }
    }
    out
}

/// The same, and without any address's parameters: where whoever reads it need not know what was asked for.
pub fn scrub_addresses(text: &str) -> String {
    let text = scrub(text, &[]);
    let (mut out, mut rest) = (String::with_capacity(text.len()), text.as_str());
    while let Some(at) = rest.find("://") {
        let end = rest[at..].find(char::is_whitespace).map_or(rest.len(), |n| at + n);
        match rest[at..end].find(['?', '#']) {
            Some(query) => {
                out.push_str(&rest[..at + query + 1]);
                out.push_str(REDACTED);
            }
            None => out.push_str(&rest[..end]),
        }
        rest = &rest[end..];
    }
    out + rest
}

/// Ends a value that is no JSON text: blanks and what stands around arguments.
fn ends(b: u8) -> bool {
    b.is_ascii_whitespace()
        || matches!(b, b'"' | b'\'' | b',' | b';' | b'&' | b'}' | b']' | b')' | b'<' | b'\\')
}

/// Where a secret's value lies that is announced at this place.
fn secret_at(text: &str, lower: &str, at: usize) -> Option<(usize, usize)> {
    let bytes = text.as_bytes();
    let until = |from: usize| bytes[from..].iter().position(|b| ends(*b)).map_or(bytes.len(), |n| from + n);
    let rest = lower.as_bytes().get(at..)?;
    let starts = |word: &str| rest.starts_with(word.as_bytes());
    for scheme in ["bearer ", "basic "] {
        if starts(scheme) {
            return Some((at + scheme.len(), until(at + scheme.len())));
        }
    }
    if starts("stl1-") {
        return Some((at, until(at)));
    }
    if starts("://") {
        let end = until(at + 3);
        let host = bytes[at + 3..end].iter().position(|b| *b == b'/').map_or(end, |n| at + 3 + n);
        let user = bytes[at + 3..host].iter().rposition(|b| *b == b'@')?;
        return Some((at + 3, at + 3 + user));
    }
    if matches!(bytes[at], b'?' | b'&' | b';') {
        let plain = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
        let length = bytes[at + 1..].iter().take(64).take_while(|b| plain(b)).count();
        let name = &lower[at + 1..at + 1 + length];
        let begin = at + 1 + length + 1;
        // Whatever its value looks like: a signature may be all digits.
        let secret = PARAMETERS.contains(&name) || WORDS.iter().any(|w| name.contains(w));
        return (secret && bytes.get(begin - 1) == Some(&b'=')).then(|| (begin, until(begin)));
    }
    let word = WORDS.iter().find(|w| starts(w))?;
    let name = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
    let mut i = at + word.len();
    i += bytes[i..].iter().take_while(|b| name(b)).count();
    i += bytes[i..].iter().take_while(|b| matches!(**b, b'"' | b'\\' | b' ')).count();
    if !matches!(bytes.get(i), Some(b'=' | b':')) {
        return None;
    }
    i += 1;
    let quoted = bytes[i..].iter().take_while(|b| matches!(**b, b'"' | b'\'' | b'\\' | b' ')).count();
    let has_quote = bytes[i..i + quoted].contains(&b'"');
    i += quoted;
    let end = if has_quote {
        // The whole text of a JSON or TOML value, blanks too.
        bytes[i..].iter().position(|b| matches!(b, b'"' | b'\\' | b'\n')).map_or(bytes.len(), |n| i + n)
    } else {
        until(i)
    };
    let value = &text[i..end];
    let harmless = value.is_empty()
        || value.starts_with(['{', '[', '/'])
        || value == REDACTED
        || (!has_quote && (["null", "true", "false"].contains(&value) || value.parse::<f64>().is_ok()));
    // `Authorization: Bearer x`: the scheme stays, what follows it goes by its own rule.
    let scheme = ["bearer", "basic"].contains(&value.to_ascii_lowercase().as_str());
    (!harmless && !scheme).then_some((i, end))
}

/// Private keys as PEM.
fn keys(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(begin) = rest.find("-----BEGIN ") {
        let head = rest[begin..].find('\n').map_or(rest.len(), |n| begin + n);
        let end = rest[begin..].find("-----END ").map_or(rest.len(), |n| begin + n);
        if rest[begin..head].contains("PRIVATE KEY") || rest[begin..end].contains("PRIVATE KEY") {
            out.push_str(&rest[..begin]);
            out.push_str(REDACTED);
            let tail = rest[end..].find("KEY-----").map_or(rest.len(), |n| end + n + "KEY-----".len());
            rest = &rest[tail..];
        } else {
            let next = begin + "-----BEGIN ".len();
            out.push_str(&rest[..next]);
            rest = &rest[next..];
        }
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_looks_like_a_secret_is_taken_out() {
        for (text, want) in [
            ("curl -H 'Authorization: Bearer abc.def' x", "curl -H 'Authorization: Bearer REDACTED' x"),
            (r#"{"token": "a b c", "n": 1}"#, r#"{"token": "REDACTED", "n": 1}"#),
            (r#"{"text":"ran --api-key=k3y&x"}"#, r#"{"text":"ran --api-key=REDACTED&x"}"#),
            ("PGPASSWORD=hunter2 psql", "PGPASSWORD=REDACTED psql"),
            ("AWS_SECRET_ACCESS_KEY='x/y'", "AWS_SECRET_ACCESS_KEY='REDACTED'"),
            ("s3://me:pw@host/a", "s3://REDACTED@host/a"),
            ("az://c/x?sv=2024&sig=aB%2Fc%3D&se=9", "az://c/x?sv=2024&sig=REDACTED&se=9"),
            ("published https://h/x?sig=a/b+c= now", "published https://h/x?sig=REDACTED now"),
            (
                "s3://b/k?X-Amz-Credential=AK/1/s3&X-Amz-Date=2&X-Amz-Security-Token=q&X-Amz-Signature=0ab1",
                "s3://b/k?X-Amz-Credential=REDACTED&X-Amz-Date=2&X-Amz-Security-Token=REDACTED&X-Amz-Signature=REDACTED",
            ),
            (
                "gs://b/k?GoogleAccessId=me&Expires=1&Signature=ab",
                "gs://b/k?GoogleAccessId=REDACTED&Expires=1&Signature=REDACTED",
            ),
            (
                "https://h/k?versionId=7&access_token=t&key=k#f",
                "https://h/k?versionId=7&access_token=REDACTED&key=REDACTED",
            ),
            ("join stl1-abcdef@1.2.3.4:7", "join REDACTED"),
            ("\"a known-one b\"", "\"a REDACTED b\""),
            ("x -----BEGIN EC PRIVATE KEY-----\nMII\n-----END EC PRIVATE KEY----- y", "x REDACTED y"),
            (
                "-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----",
                "-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----",
            ),
            // What is none stays.
            (
                r#"{"tokens": 12, "secret": null, "token": ["a"]}"#,
                r#"{"tokens": 12, "secret": null, "token": ["a"]}"#,
            ),
            ("a token holder", "a token holder"),
            ("token = \"/etc/jwt\"", "token = \"/etc/jwt\""),
            ("größe: ü", "größe: ü"),
            ("s3://b/sig/key=1/part?versionId=7", "s3://b/sig/key=1/part?versionId=7"),
            ("key=3; signal=9", "key=3; signal=9"),
            ("?é=1&sig", "?é=1&sig"),
        ] {
            assert_eq!(scrub(text, &["known-one".into()]), want);
        }
    }

    #[test]
    fn addresses_lose_users_and_parameters() {
        for (text, want) in [
            ("http://user:hookpass777@h:99999/p?token=hooktok888", "http://REDACTED@h:99999/p?REDACTED"),
            ("at https://h/p?a=b#c and then s3://b/k", "at https://h/p?REDACTED and then s3://b/k"),
            ("what? no address", "what? no address"),
        ] {
            assert_eq!(scrub_addresses(text), want);
        }
    }

    #[test]
    fn a_signature_that_is_a_number_is_one_all_the_same() {
        assert_eq!(scrub("https://h/k?sig=123456", &[]), "https://h/k?sig=REDACTED");
        assert_eq!(
            scrub("https://h/k?X-Amz-Signature=123456&a=b", &[]),
            "https://h/k?X-Amz-Signature=REDACTED&a=b"
        );
    }
}
