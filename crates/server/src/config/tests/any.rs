//! Whatever is in a file, there is an answer.

use proptest::prelude::*;

use super::{super::keys::KEYS, *};

/// Whatever is in a file, there is an answer, and what is wrong is in it.
fn answers(text: &str) -> Result<(), TestCaseError> {
    let Err(problems) = read(text) else { return Ok(()) };
    prop_assert!(problems.errors() > 0);
    let lines: Vec<_> = text.split('\n').collect();
    for problem in &problems.all {
        problem.render();
        if let Place::At { line, column, .. } = problem.place {
            prop_assert!((1..=lines.len()).contains(&line), "{problem:?}");
            prop_assert!(
                (1..=lines[line - 1].chars().count() + 1).contains(&column),
                "{problem:?}"
            );
        } else {
            prop_assert!(false, "{problem:?}");
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn any_text_has_an_answer(text in ".{0,200}") {
        answers(&text)?;
    }

    #[test]
    fn any_bytes_have_an_answer(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        answers(&String::from_utf8_lossy(&bytes))?;
    }

    /// The example with a few places overwritten, cut or doubled.
    #[test]
    fn a_spoilt_example_has_an_answer(cuts in proptest::collection::vec((any::<prop::sample::Index>(), 0..3u8, "[\\PC\\n\"'=\\[\\]{}.,#0-9-]{0,4}"), 1..6)) {
        let mut text: Vec<char> = EXAMPLE.chars().collect();
        for (at, how, with) in cuts {
            let at = at.index(text.len());
            let end = (at + with.chars().count() + usize::from(how)).min(text.len());
            match how {
                0 => drop(text.splice(at..end, with.chars())),
                1 => drop(text.splice(at..at, with.chars())),
                _ => { let again: Vec<_> = text[at..end].to_vec(); text.splice(at..at, again); }
            }
        }
        answers(&text.into_iter().collect::<String>())?;
    }

    /// Values of every kind under every key.
    #[test]
    fn any_value_under_any_key_has_an_answer(key in 0..KEYS.len(), value in "(-?[0-9]{1,22}|[0-9]\\.[0-9]|true|\"[a-z:/0-9.*@%-]{0,12}\"|\\[(\"[a-z/.:]{0,4}\",? ?){0,3}\\]|\\{ a = [0-9] \\}|nan|1979-05-27)") {
        let key = &KEYS[key];
        let text = match key.path.strip_prefix("route.") {
            Some(inner) if !["topic", "to"].contains(&inner) => route(&format!("{inner} = {value}")),
            Some(inner) => format!("[[route]]\n{inner} = {value}\n"),
            None => format!("{} = {value}\n", key.path),
        };
        answers(&text)?;
    }
}
