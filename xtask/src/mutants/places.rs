//! The places of a source where a small fault can be put in: an operator, a condition, a number, a call
//! whose value nobody uses, the whole of a function.

use anyhow::{Context as _, Result};
use std::collections::HashMap;
use std::ops::Range;
use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};
use syn::{Attribute, BinOp, Block, Expr, Lit, Pat, ReturnType, Signature, Stmt, Type, UnOp};

/// One fault that a source can have.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Mutation {
    /// The function with what it lies in: `Type::method`.
    pub(crate) function: String,
    /// What becomes of what, and the how manieth of these in the function it is: lines may shift.
    pub(crate) words: String,
    /// The bytes of the source that it replaces.
    pub(crate) range: Range<usize>,
    pub(crate) instead: String,
    pub(crate) form: Form,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Form {
    Expression,
    Statement,
}

/// The mutations of one file, and its functions.
#[derive(Default)]
pub(crate) struct Places {
    pub(crate) mutations: Vec<Mutation>,
    /// The bodies of functions by their names; a type may have one name by several traits.
    functions: Vec<(String, Range<usize>)>,
}

/// Calls that are replaced by others of the same type.
const OTHER_CALLS: [(&str, &str); 11] = [
    ("min", "max"),
    ("max", "min"),
    ("is_some", "is_none"),
    ("is_none", "is_some"),
    ("is_ok", "is_err"),
    ("is_err", "is_ok"),
    ("all", "any"),
    ("any", "all"),
    ("first", "last"),
    ("last", "first"),
    ("saturating_sub", "wrapping_add"),
];

/// Traits whose functions write text for people.
const TEXTS: [&str; 2] = ["Debug", "Display"];

/// What holds where the mutants are built, as `cfg` names it, without blanks. Other predicates do not.
const HOLDS: [&str; 5] = [
    "unix",
    "target_os=\"linux\"",
    "not(aquifer_loom)",
    "not(aquifer_std_allocator)",
    "not(target_vendor=\"apple\")",
];

/// Finds what can be mutated in a source.
pub(crate) fn find(text: &str) -> Result<Places> {
    let file = syn::parse_file(text).context("the source does not parse")?;
    let mut finder = Finder { text, scope: Vec::new(), functions: 0, places: Places::default() };
    finder.visit_file(&file);
    let mut places = finder.places;
    places.mutations.sort_by_key(|mutation| mutation.range.start);
    let mut seen: HashMap<(String, String), u32> = HashMap::new();
    for mutation in &mut places.mutations {
        let ordinal = seen.entry((mutation.function.clone(), mutation.words.clone())).or_default();
        *ordinal += 1;
        mutation.words = format!("{} #{ordinal}", mutation.words);
    }
    Ok(places)
}

impl Places {
    /// The mutation that a row of the list describes: words of [`find`], or `old => new`, where the old
    /// text occurs once in the function. Blanks do not count.
    pub(crate) fn named(&self, text: &str, function: &str, words: &str) -> Result<Mutation> {
        if let Some((old, new)) = words.split_once(" => ") {
            return self.replacement(text, function, words, old.trim(), new.trim());
        }
        let mut same = self
            .mutations
            .iter()
            .filter(|mutation| mutation.function == function && mutation.words == words);
        same.next().cloned().with_context(|| format!("`{function}` has no `{words}`"))
    }

    fn replacement(
        &self,
        text: &str,
        function: &str,
        words: &str,
        old: &str,
        new: &str,
    ) -> Result<Mutation> {
        let mut found = Vec::new();
        for (name, body) in &self.functions {
            if name == function {
                found.extend(occurrences(text, body, old));
            }
        }
        let [range] = &found[..] else {
            anyhow::bail!("`{function}` has `{old}` {} times, not once", found.len());
        };
        let form = if old.ends_with([';', '}']) { Form::Statement } else { Form::Expression };
        Ok(Mutation {
            function: function.into(),
            words: words.into(),
            range: range.clone(),
            instead: new.into(),
            form,
        })
    }
}

/// Where `wanted` occurs in a part of `text`, whatever the blanks of either.
fn occurrences(text: &str, part: &Range<usize>, wanted: &str) -> Vec<Range<usize>> {
    let solid: Vec<(usize, char)> = text[part.clone()]
        .char_indices()
        .filter(|(_, c)| !c.is_whitespace())
        .map(|(at, c)| (part.start + at, c))
        .collect();
    let wanted: Vec<char> = wanted.chars().filter(|c| !c.is_whitespace()).collect();
    if wanted.is_empty() {
        return Vec::new();
    }
    let same = |window: &&[(usize, char)]| window.iter().map(|(_, c)| c).eq(&wanted);
    let range = |window: &[(usize, char)]| {
        let (last, c) = window[window.len() - 1];
        window[0].0..last + c.len_utf8()
    };
    solid.windows(wanted.len()).filter(same).map(range).collect()
}

struct Finder<'s> {
    text: &'s str,
    /// The names of what the place lies in.
    scope: Vec<String>,
    /// How many functions the place lies in.
    functions: u32,
    places: Places,
}

impl Finder<'_> {
    fn part(&self, node: &impl syn::spanned::Spanned) -> &str {
        &self.text[node.span().byte_range()]
    }

    fn add(&mut self, range: Range<usize>, words: String, instead: String, form: Form) {
        if self.functions > 0 {
            let function = self.scope.join("::");
            self.places.mutations.push(Mutation { function, words, range, instead, form });
        }
    }

    fn expression(&mut self, node: &Expr, words: String, instead: String) {
        self.add(node.span().byte_range(), words, instead, Form::Expression);
    }

    fn within(&mut self, name: String, visit: impl FnOnce(&mut Self)) {
        self.scope.push(name);
        visit(self);
        self.scope.pop();
    }

    fn function(&mut self, attributes: &[Attribute], signature: &Signature, block: &Block) {
        if signature.constness.is_some() || is_off(attributes) {
            return;
        }
        self.within(signature.ident.to_string(), |this| {
            let body = block.brace_token.span.join().byte_range();
            this.places.functions.push((this.scope.join("::"), body.clone()));
            this.functions += 1;
            let start = body.start + 1..body.start + 1;
            for value in values_of(&signature.output) {
                let instead = format!("return {value};");
                this.add(start.clone(), format!("body becomes {value}"), instead, Form::Statement);
            }
            this.visit_block(block);
            this.functions -= 1;
        });
    }

    /// Negates a condition, unless a mutation of the whole of it does the same.
    fn condition(&mut self, condition: &Expr) {
        let same = match condition {
            Expr::Binary(binary) => matches!(binary.op, BinOp::Eq(_) | BinOp::Ne(_)),
            Expr::Unary(_) | Expr::Lit(_) => true,
            Expr::MethodCall(call) => other_call(&call.method.to_string()).is_some(),
            _ => false,
        };
        if !same && !has_let(condition) {
            let negated = format!("!({})", self.part(condition));
            self.expression(condition, "condition negated".into(), negated);
        }
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_mod(&mut self, node: &'ast syn::ItemMod) {
        if !is_off(&node.attrs) {
            self.within(node.ident.to_string(), |this| visit::visit_item_mod(this, node));
        }
    }

    fn visit_item_impl(&mut self, node: &'ast syn::ItemImpl) {
        let last = |path: &syn::Path| path.segments.last().map(|last| last.ident.to_string());
        let text = node.trait_.as_ref().and_then(|(path, ..)| last(path));
        if is_off(&node.attrs) || text.is_some_and(|text| TEXTS.contains(&text.as_str())) {
            return;
        }
        let name = match &*node.self_ty {
            Type::Path(path) => last(&path.path),
            _ => None,
        };
        let name = name.unwrap_or_else(|| self.part(&node.self_ty).into());
        self.within(name, |this| visit::visit_item_impl(this, node));
    }

    fn visit_item_trait(&mut self, node: &'ast syn::ItemTrait) {
        self.within(node.ident.to_string(), |this| visit::visit_item_trait(this, node));
    }

    fn visit_item_fn(&mut self, node: &'ast syn::ItemFn) {
        self.function(&node.attrs, &node.sig, &node.block);
    }

    fn visit_impl_item_fn(&mut self, node: &'ast syn::ImplItemFn) {
        self.function(&node.attrs, &node.sig, &node.block);
    }

    fn visit_trait_item_fn(&mut self, node: &'ast syn::TraitItemFn) {
        if let Some(block) = &node.default {
            self.function(&node.attrs, &node.sig, block);
        }
    }

    fn visit_stmt(&mut self, node: &'ast Stmt) {
        let range = node.span().byte_range();
        if self.text[range.clone()].starts_with("#[cfg") {
            return;
        }
        let deleted = match node {
            Stmt::Expr(Expr::Assign(assign), Some(_)) => {
                Some(format!("assignment to {}", one_line(self.part(&assign.left))))
            }
            Stmt::Expr(expr, Some(_)) => callee(expr).map(|callee| format!("call of {callee}")),
            Stmt::Local(local) if matches!(local.pat, Pat::Wild(_)) => {
                let init = local.init.as_ref();
                init.and_then(|init| callee(&init.expr)).map(|callee| format!("call of {callee}"))
            }
            Stmt::Expr(Expr::If(branch), None) if branch.else_branch.is_none() => {
                has_let(&branch.cond).then(|| "if let".into())
            }
            Stmt::Expr(Expr::ForLoop(_), None) => Some("for".into()),
            _ => None,
        };
        if let Some(deleted) = deleted {
            self.add(range, format!("{deleted} deleted"), String::new(), Form::Statement);
        }
        visit::visit_stmt(self, node);
    }

    fn visit_expr(&mut self, node: &'ast Expr) {
        match node {
            Expr::Binary(binary) => {
                if let Some((old, new)) = other_operator(&binary.op)
                    && !has_let(node)
                {
                    let (left, right) = (self.part(&binary.left), self.part(&binary.right));
                    let assigns = new.len() > 1 && new.ends_with('=') && !"!=<=>===".contains(new);
                    let instead = if assigns {
                        format!("{left} {new} {right}")
                    } else {
                        format!("({left}) {new} ({right})")
                    };
                    self.expression(node, format!("{old} becomes {new}"), instead);
                }
            }
            Expr::Unary(unary) if matches!(unary.op, UnOp::Not(_)) => {
                let instead = self.part(&unary.expr).into();
                self.expression(node, "! removed".into(), instead);
            }
            Expr::Lit(literal) => {
                if let Some((old, new)) = other_literal(&literal.lit) {
                    self.expression(node, format!("{old} becomes {new}"), new);
                }
            }
            Expr::MethodCall(call) => {
                let name = call.method.to_string();
                if let Some(other) = other_call(&name) {
                    let (whole, method) =
                        (node.span().byte_range(), call.method.span().byte_range());
                    let (before, after) =
                        (&self.text[whole.start..method.start], &self.text[method.end..whole.end]);
                    let instead = format!("{before}{other}{after}");
                    self.expression(node, format!("{name} becomes {other}"), instead);
                }
            }
            Expr::If(branch) => self.condition(&branch.cond),
            Expr::While(repeated) => self.condition(&repeated.cond),
            _ => {}
        }
        visit::visit_expr(self, node);
    }

    fn visit_expr_repeat(&mut self, node: &'ast syn::ExprRepeat) {
        self.visit_expr(&node.expr);
    }

    fn visit_pat(&mut self, node: &'ast Pat) {
        if let Pat::Guard(guarded) = node {
            self.condition(&guarded.guard);
            self.visit_expr(&guarded.guard);
        }
    }

    fn visit_macro(&mut self, node: &'ast syn::Macro) {
        use syn::parse::Parser as _;
        // The other macros have text in them, or are of debug builds alone.
        if !node.path.is_ident("ensure") {
            return;
        }
        let arguments = syn::punctuated::Punctuated::<Expr, syn::Token![,]>::parse_terminated
            .parse2(node.tokens.clone());
        if let Ok(arguments) = arguments
            && let Some(condition) = arguments.first()
        {
            self.condition(condition);
            self.visit_expr(condition);
        }
    }

    // What has to be constant.
    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}
    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}
    fn visit_item_enum(&mut self, _: &'ast syn::ItemEnum) {}
    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
    fn visit_trait_item_const(&mut self, _: &'ast syn::TraitItemConst) {}
    fn visit_expr_const(&mut self, _: &'ast syn::ExprConst) {}
    fn visit_type(&mut self, _: &'ast Type) {}
    fn visit_generics(&mut self, _: &'ast syn::Generics) {}
    fn visit_angle_bracketed_generic_arguments(
        &mut self,
        _: &'ast syn::AngleBracketedGenericArguments,
    ) {
    }
    fn visit_attribute(&mut self, _: &'ast Attribute) {}
}

/// Whether an attribute takes this out of the program that is mutated, or it is a test.
fn is_off(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        if attribute.path().is_ident("test") {
            return true;
        }
        let syn::Meta::List(list) = &attribute.meta else { return false };
        let text: String = list.tokens.to_string().chars().filter(|c| !c.is_whitespace()).collect();
        let holds = HOLDS.contains(&text.as_str()) || text.starts_with("feature=");
        attribute.path().is_ident("cfg") && !holds
    })
}

fn has_let(condition: &Expr) -> bool {
    match condition {
        Expr::Let(_) => true,
        Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

/// What an expression calls, if it is a call.
fn callee(expr: &Expr) -> Option<String> {
    match expr {
        Expr::MethodCall(call) => Some(call.method.to_string()),
        Expr::Try(inner) => callee(&inner.expr),
        Expr::Call(call) => match &*call.func {
            Expr::Path(path) => Some(path.path.segments.last()?.ident.to_string()),
            _ => None,
        },
        _ => None,
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn other_call(name: &str) -> Option<&'static str> {
    OTHER_CALLS.iter().find(|(from, _)| *from == name).map(|(_, to)| *to)
}

fn other_operator(operator: &BinOp) -> Option<(&'static str, &'static str)> {
    Some(match operator {
        BinOp::Add(_) => ("+", "-"),
        BinOp::Sub(_) => ("-", "+"),
        BinOp::Mul(_) => ("*", "+"),
        BinOp::Div(_) => ("/", "*"),
        BinOp::Rem(_) => ("%", "/"),
        BinOp::And(_) => ("&&", "||"),
        BinOp::Or(_) => ("||", "&&"),
        BinOp::BitAnd(_) => ("&", "|"),
        BinOp::BitOr(_) => ("|", "&"),
        BinOp::Shl(_) => ("<<", ">>"),
        BinOp::Shr(_) => (">>", "<<"),
        BinOp::Eq(_) => ("==", "!="),
        BinOp::Ne(_) => ("!=", "=="),
        BinOp::Lt(_) => ("<", "<="),
        BinOp::Le(_) => ("<=", "<"),
        BinOp::Ge(_) => (">=", ">"),
        BinOp::Gt(_) => (">", ">="),
        BinOp::AddAssign(_) => ("+=", "-="),
        BinOp::SubAssign(_) => ("-=", "+="),
        BinOp::BitAndAssign(_) => ("&=", "|="),
        BinOp::BitOrAssign(_) => ("|=", "&="),
        _ => return None,
    })
}

fn other_literal(literal: &Lit) -> Option<(String, String)> {
    match literal {
        Lit::Bool(value) => Some((value.value.to_string(), (!value.value).to_string())),
        Lit::Int(number) => {
            let value: u64 = number.base10_parse().ok()?;
            let other = if value == 1 { 0 } else { value.checked_add(1)? };
            Some((number.to_string(), format!("{other}{}", number.suffix())))
        }
        _ => None,
    }
}

/// What a function of such a type can return without doing anything.
fn values_of(output: &ReturnType) -> Vec<&'static str> {
    let ReturnType::Type(_, of) = output else { return vec![""] };
    let Type::Path(path) = &**of else { return Vec::new() };
    let Some(last) = path.path.segments.last() else { return Vec::new() };
    let first = match &last.arguments {
        syn::PathArguments::AngleBracketed(arguments) => arguments.args.first(),
        _ => None,
    };
    let unit = |argument: &syn::GenericArgument| match argument {
        syn::GenericArgument::Type(Type::Tuple(tuple)) => tuple.elems.is_empty(),
        _ => false,
    };
    match last.ident.to_string().as_str() {
        "bool" => vec!["false", "true"],
        "u32" | "u64" | "usize" | "u8" => vec!["0", "1"],
        "Option" => vec!["None"],
        "Result" if first.is_some_and(unit) => vec!["Ok(())"],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<(String, String, String)> {
        let found = find(text).unwrap().mutations;
        let all = found.into_iter().map(|m| (m.function, m.words, text[m.range].to_owned()));
        all.collect()
    }

    fn has(text: &str, function: &str, wanted: &str, part: &str) {
        let all = words(text);
        let one = (function.to_owned(), wanted.to_owned(), part.to_owned());
        assert!(all.contains(&one), "{one:?} is not in {all:#?}");
    }

    #[test]
    fn finds_operators_conditions_calls_and_bodies() {
        let text =
            "impl A { fn f(&self) -> Result<()> { if self.x(1) { y(); } a = b + 1 < c; Ok(()) } }";
        has(text, "A::f", "condition negated #1", "self.x(1)");
        has(text, "A::f", "call of y deleted #1", "y();");
        has(text, "A::f", "assignment to a deleted #1", "a = b + 1 < c;");
        has(text, "A::f", "< becomes <= #1", "b + 1 < c");
        has(text, "A::f", "1 becomes 0 #2", "1");
        has(text, "A::f", "body becomes Ok(()) #1", "");
        has(
            "fn g() -> Result<()> { ensure!(a == b, Kind, \"x\"); Ok(()) }",
            "g",
            "== becomes != #1",
            "a == b",
        );
        has("fn g() { match x { 1 if y => {} _ => {} } }", "g", "condition negated #1", "y");
    }

    #[test]
    fn leaves_alone_what_is_constant_or_no_part_of_the_program() {
        for text in [
            "const A: u32 = 1 + 2;",
            "const fn f() -> u32 { 1 + 2 }",
            "#[cfg(test)] mod tests { fn f() -> u32 { 1 + 2 } }",
            "#[cfg(windows)] fn f() -> u32 { 1 + 2 }",
            "impl Display for A { fn fmt(&self) -> u32 { 1 } }",
            "fn f() -> [u8; 2] { let A::<3>(4) = x else { return debug_assert!(1 == 2) }; [x; 5] }",
        ] {
            assert_eq!(words(text), []);
        }
    }

    #[test]
    fn a_part_of_a_condition_with_let_is_no_operator_of_its_own() {
        let all = words("fn f() -> A { if let Some(x) = y && x > z { w } else { v } }");
        assert_eq!(all, [("f".into(), "> becomes >= #1".into(), "x > z".into())]);
    }

    #[test]
    fn a_text_is_found_once_in_its_function_whatever_its_blanks() {
        let text = "fn f() { g(1,\n 2); } fn h() { g(1, 2); }";
        let places = find(text).unwrap();
        let named = |function, words| places.named(text, function, words);
        let found = named("f", "g(1, 2); => g(2, 1);").unwrap();
        assert_eq!((&text[found.range], found.form), ("g(1,\n 2);", Form::Statement));
        assert_eq!(named("f", "2 => 3").unwrap().form, Form::Expression);
        assert!(named("f", "g(3); => ").is_err());
        assert!(named("f", "1 becomes 0 #2").is_err());
        assert!(named("f", "1 becomes 0 #1").is_ok());
    }
}
