//! `array` and `after`: many jobs from one document, and jobs that wait for others.

use super::keys::AFTER;
use crate::model::array::{AFTER_MAX, ArraySpec, On};
use crate::model::input::{Field, Fields, Mistakes, Value};

const ID: &str = "must be a job id, or its first 4 or more characters; ID.7 is job 7 of an array";
pub(super) const WORDS: [(&str, On); 3] = [("ok", On::Ok), ("fail", On::Fail), ("any", On::Any)];

/// `array`: a count, or an index list with the most that may be unfinished at a time.
pub fn array(field: Field, m: &mut Mistakes) -> Option<ArraySpec> {
    let text = match &field.node.value {
        Value::Text(text) => text.clone(),
        Value::Int(_) => field.node.spelling.clone(),
        _ => String::new(),
    };
    let read = ArraySpec::parse(&text);
    if let Err(why) = &read {
        field.wrong(
            m,
            format!("must be a count such as 100, or indices such as 0-99, 1,5,10-20:2 or 0-499%50: {why}"),
        );
    }
    read.ok()
}

fn id(text: &str) -> Option<String> {
    let (id, index) = text.split_once('.').unwrap_or((text, "0"));
    let sound = (4..=32).contains(&id.len())
        && id.bytes().all(|b| b.is_ascii_lowercase() || (b'2'..=b'7').contains(&b))
        && (1..=7).contains(&index.len())
        && index.bytes().all(|b| b.is_ascii_digit());
    sound.then(|| text.to_owned())
}

/// `after`: one job or several, each an id, `ok:ID`, or a mapping.
pub fn after(field: Field, m: &mut Mistakes) -> Vec<(String, On)> {
    let mut out = Vec::new();
    for item in field.one_or_many(m, AFTER_MAX) {
        if !matches!(item.node.value, Value::Map(_)) {
            out.extend(item.read(m, ID, |text| {
                let (on, rest) = match text.split_once(':') {
                    Some((word, rest)) => (WORDS.iter().find(|(w, _)| *w == word)?.1, rest),
                    None => (On::Ok, text),
                };
                Some((id(rest)?, on))
            }));
            continue;
        }
        let Some(mut fields) = Fields::of(item, m) else { continue };
        let on = fields.take("on", m).map_or(Some(On::Ok), |f| f.word(m, &WORDS));
        match fields.take("job", m) {
            Some(job) => out.extend(job.read(m, ID, id).zip(on)),
            None if !fields.had("job") => {
                fields.missing(m, "job", "is missing: the id of the job to wait for")
            }
            None => {}
        }
        fields.finish(
            m,
            AFTER,
            &[("id", "write job"), ("state", "write on"), ("type", "write on: ok, fail or any")],
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::spec_input::{SpecErrors, parse_spec, render_spec};

    #[test]
    fn arrays_and_what_comes_before_are_read() {
        let read = |text: &str| parse_spec(text.as_bytes()).unwrap_or_else(|e| panic!("{text}: {e}"));
        let spec = read("{run: x, array: 0-499%50}").spec;
        assert_eq!(spec.array.as_ref().map(|a| (a.len(), a.at_once)), Some((500, 50)));
        assert_eq!(read(&render_spec(&spec)).spec, spec);
        assert_eq!(read("{run: x, array: 100}").spec.array.map(|a| a.len()), Some(100));
        let after = |text: &str| read(&format!("{{run: x, after: {text}}}")).after;
        assert_eq!(after("abcd"), [("abcd".to_owned(), On::Ok)]);
        assert_eq!(
            after("[abcd, \"any:abce.7\", {job: abcf, on: fail}, {job: abcg}]"),
            [("abcd", On::Ok), ("abce.7", On::Any), ("abcf", On::Fail), ("abcg", On::Ok)]
                .map(|(id, on)| (id.to_owned(), on))
        );
    }

    #[test]
    fn what_is_wrong_in_them_is_named() {
        let many = format!("after: [{}]", "abcd, ".repeat(40));
        for (text, key) in [
            ("array: 1000000", "array"),
            ("array: 3-1", "array"),
            ("array: {a: 1}", "array"),
            ("after: abc", "after"),
            ("after: ABCD", "after"),
            ("after: \"soon:abcd\"", "after"),
            ("after: [{on: ok}]", "after[0].job"),
            ("after: [{job: abcd, on: well}]", "after[0].on"),
            ("after: [{job: abcd, when: ok}]", "after[0].when"),
            ("after: abcd.x", "after"),
            (&many, "after"),
        ] {
            let Err(SpecErrors::Mistakes(list)) = parse_spec(format!("{{run: x, {text}}}").as_bytes()) else {
                panic!("{text} was taken")
            };
            assert!(list.iter().any(|mistake| mistake.key == key), "{text}: {list:?}");
        }
    }
}
