//! No function takes a tuple apart in its list of parameters: at a call its parts have no names.
//! Inputs of tests that a macro gives them are no parameters in this sense.

use super::{Faults, all_hold, code_of, fault, found, is_of_name};

/// The lists of parameters in the code, from their parentheses on, with their places.
fn parameter_lists(code: &str) -> impl Iterator<Item = (usize, &str)> {
    code.match_indices("fn ").filter_map(|(at, word)| {
        let named = &code[at + word.len()..];
        let rest = named.trim_start_matches(is_of_name);
        let is_function = !code[..at].ends_with(is_of_name) && rest.len() < named.len();
        let list = after_generics(rest);
        (is_function && list.starts_with('(')).then(|| (code.len() - list.len(), list))
    })
}

/// The parameters of a list, each from its beginning on, with their places in the list.
fn parameters(list: &str) -> Vec<(usize, &str)> {
    let (mut begun, mut depth, mut is_next) = (Vec::new(), 0, false);
    for (at, c) in list.char_indices() {
        if depth == 1 && is_next && !c.is_whitespace() && c != ')' {
            begun.push((at, &list[at..]));
            is_next = false;
        }
        match c {
            '(' | '[' | '{' | '<' => depth += 1,
            // An arrow closes nothing.
            '>' if list[..at].ends_with('-') => {}
            ')' | ']' | '}' | '>' => depth -= 1,
            _ => {}
        }
        is_next |= depth == 1 && matches!(c, '(' | ',');
        if depth == 0 {
            break;
        }
    }
    begun
}

/// What follows the generics that a text begins with, if it does.
fn after_generics(text: &str) -> &str {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '<' => depth += 1,
            '>' if !text[..at].ends_with('-') => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return if c == '>' { &text[at + 1..] } else { text };
        }
    }
    ""
}

/// Whether a parameter is a pattern of parts in parentheses, with its type behind it.
fn is_tuple(parameter: &str) -> bool {
    let pattern = parameter.trim_start_matches('&');
    let mut depth = 0;
    let end = pattern.find(|c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        depth == 0
    });
    let behind = end.and_then(|end| pattern.get(end + 1..));
    pattern.starts_with('(')
        && !pattern.starts_with("()")
        && behind.is_some_and(|behind| behind.trim_start().starts_with(':'))
}

fn tuples(path: &str, text: &str) -> Faults {
    let code = code_of(text);
    let what = "a tuple is taken apart in the list of parameters";
    let faults = parameter_lists(&code).flat_map(|(begin, list)| {
        let wrong = parameters(list).into_iter().filter(|(_, parameter)| is_tuple(parameter));
        wrong.map(move |(at, _)| begin + at)
    });
    faults.map(|at| fault(path, code[..at].matches('\n').count() + 1, what)).collect()
}

#[test]
fn parameters_are_no_tuples() {
    all_hold(&["src", "tests", "benches"], &[".rs"], &[tuples]);
}

#[test]
fn tuples_in_parameters_are_found() {
    let cases = [
        ("fn f((a, b): (u8, u8)) {}", 1),
        ("fn f(\n    a: u8,\n    &(b, c): &(u8, u8),\n) {}", 1),
        ("fn f<F: Fn(u8) -> u8>(a: F, (b, c): (u8, u8), (d, e): (u8, u8)) {}", 2),
        ("fn f(a: (u8, u8), b: &(u8, u8)) {}", 0),
        ("fn f(a: impl Fn((u8, u8)) -> Option<(u8, u8)>, b: [(u8, u8); 2]) {}", 0),
        ("fn f(&self, (): ()) { g(|(a, b)| a); h((1, 2)) }", 0),
        ("fn f(Point { x, .. }: Point) -> (u8, u8) { (x, x) }", 0),
        ("fn f(#[case] (a, b): (u8, u8)) {}", 0),
        ("fn f((a, b) in pairs()) {}", 0),
        ("type F = fn((u8, u8)) -> u8;", 0),
    ];
    for (text, faults) in cases {
        assert_eq!(found(tuples, "src/a.rs", text), faults, "{text}");
    }
    assert!(tuples("src/a.rs", "\n\nfn f(\n(a, b): A) {}")[0].starts_with("src/a.rs:4: "));
}
