//! The grammar of a stack.

use super::error::Problem;
use super::layer::{Layer, Layers};
use super::mistakes::{
    lacks_value, no_place, no_upstream, not_a_name, not_after_argument, second_upstream, unclosed,
    unknown_name, unknown_option, upstream_is_there, wrong_place,
};
use super::names::{DEFAULT_UPSTREAM, Given, LayerKind, Make, Over, Place, ValueKind};
use super::token::{Token, Tokens};
use super::value::Value;
use std::ops::Range;

/// Bytes of a text at most. The canonical text of any other has less.
const MAX_BYTES: usize = 1 << 20;

/// Bytes of a value at most, as many as Linux takes in a path.
const MAX_VALUE: usize = 4096;

/// Resources and adaptors of a text at most. Each call goes through all of them, one inside of the other.
const MAX_LAYERS: usize = 32;

/// The most of these that are resources around another. A pool that is about to refuse a
/// request asks its upstream four times. So each further pool around it makes the
/// requests to all below four times as many.
const MAX_AROUND: usize = 4;

/// Reads a whole text.
pub(super) fn stack(text: &str) -> Result<Layers, Problem> {
    let mut parser = Parser::new(text)?;
    let layers = parser.stack()?;
    match parser.tokens.next()? {
        (Token::End, _) => Ok(layers),
        (token, at) => Err(Problem::new(
            at,
            format!("{}, where `|` or the end was expected", token.found()),
            "put an adaptor after a `|`, a resource's upstream and options in parentheses",
        )),
    }
}

/// Reads resources and adaptors that go around a stack which is there, such as
/// `pool(max=1GiB) | statistics`.
pub(super) fn around(text: &str) -> Result<Vec<Layer<Over>>, Problem> {
    let mut parser = Parser::new(text)?;
    let mut layers = Vec::new();
    loop {
        layers.push(parser.layer_around()?);
        match parser.tokens.next()? {
            (Token::End, _) => return Ok(layers),
            (Token::Mark('|'), _) => {}
            (token, at) => {
                let what = format!("{}, where `|` or the end was expected", token.found());
                return Err(Problem::new(at, what, "put each resource or adaptor after a `|`"));
            }
        }
    }
}

struct Parser<'a> {
    tokens: Tokens<'a>,
    /// The layers begun so far.
    layers: usize,
    /// The number of these that are resources around another. Each level of the recursion has one.
    around: usize,
}

/// A layer while its arguments are read.
struct Arguments {
    kind: &'static LayerKind,
    /// The place of the layer's name.
    at: Range<usize>,
    /// The place of its parenthesis.
    open: Range<usize>,
    upstream: Option<Layers>,
    values: Vec<(usize, Value)>,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Result<Self, Problem> {
        if text.len() > MAX_BYTES {
            let end = text.ceil_char_boundary(MAX_BYTES);
            let what = format!("the text has {} bytes, and may have {MAX_BYTES}", text.len());
            return Err(Problem::new(end..text.len(), what, "write less"));
        }
        Ok(Self { tokens: Tokens::new(text), layers: 0, around: 0 })
    }

    /// One resource or adaptor that is over another, which is not in the text.
    fn layer_around(&mut self) -> Result<Layer<Over>, Problem> {
        let adaptor = match self.tokens.peek()?.0 {
            Token::Word(word) => LayerKind::named(word).is_none_or(LayerKind::is_adaptor),
            _ => true,
        };
        let (kind, at) = self.name(adaptor)?;
        let Make::Over(make) = kind.make else { return Err(wrong_place(kind, at)) };
        let Arguments { upstream, values, .. } = self.arguments(kind, at.clone())?;
        match upstream {
            None => Ok(Layer { kind, make, at, values }),
            Some(_) => Err(upstream_is_there(kind, at)),
        }
    }

    fn stack(&mut self) -> Result<Layers, Problem> {
        let (kind, at) = self.name(false)?;
        let Arguments { upstream, values, .. } = self.arguments(kind, at.clone())?;
        let mut layers = match kind.make {
            Make::Source(make) => {
                Layers { first: Layer { kind, make, at, values }, others: Vec::new() }
            }
            Make::Over(make) => {
                let mut below = match upstream {
                    Some(upstream) => upstream,
                    None => self.default_upstream(&at)?,
                };
                below.others.push(Layer { kind, make, at, values });
                below
            }
        };
        while self.tokens.take('|')? {
            let (kind, at) = self.name(true)?;
            let Make::Over(make) = kind.make else { return Err(wrong_place(kind, at)) };
            let Arguments { values, .. } = self.arguments(kind, at.clone())?;
            layers.others.push(Layer { kind, make, at, values });
        }
        Ok(layers)
    }

    /// Reads the name of a resource or an adaptor.
    fn name(&mut self, adaptor: bool) -> Result<(&'static LayerKind, Range<usize>), Problem> {
        let (token, at) = self.tokens.next()?;
        let Token::Word(word) = token else { return Err(not_a_name(adaptor, &token, at)) };
        let Some(kind) = LayerKind::named(word) else {
            return Err(unknown_name(adaptor, word, at));
        };
        if kind.is_adaptor() != adaptor {
            return Err(wrong_place(kind, at));
        }
        self.count(&at)?;
        self.around += usize::from(kind.place == Place::Around);
        if self.around > MAX_AROUND {
            let what = format!("the text has more than {MAX_AROUND} resources around another");
            let advice = "leave some out: each asks those below it several times before it refuses";
            return Err(Problem::new(at, what, advice));
        }
        Ok((kind, at))
    }

    /// The upstream of the resource whose name stands here.
    fn default_upstream(&mut self, at: &Range<usize>) -> Result<Layers, Problem> {
        self.count(at)?;
        let (kind, make) = DEFAULT_UPSTREAM;
        let first = Layer { kind, make, at: at.clone(), values: Vec::new() };
        Ok(Layers { first, others: Vec::new() })
    }

    /// Counts a layer whose name stands here.
    fn count(&mut self, at: &Range<usize>) -> Result<(), Problem> {
        self.layers += 1;
        if self.layers <= MAX_LAYERS {
            return Ok(());
        }
        let what = format!("the text has more than {MAX_LAYERS} resources and adaptors");
        Err(Problem::new(at.clone(), what, "leave some out: each call goes through them all"))
    }

    /// Reads what stands in parentheses after a name, if anything does.
    fn arguments(
        &mut self,
        kind: &'static LayerKind,
        at: Range<usize>,
    ) -> Result<Arguments, Problem> {
        let (_, open) = self.tokens.peek()?;
        let mut arguments = Arguments { kind, at, open, upstream: None, values: Vec::new() };
        if self.tokens.take('(')? && !self.tokens.take(')')? {
            loop {
                self.argument(&mut arguments)?;
                match self.tokens.next()? {
                    (Token::Mark(','), _) => {}
                    (Token::Mark(')'), _) => break,
                    (Token::End, _) => return Err(unclosed(arguments.open)),
                    (token, at) => return Err(not_after_argument(&token, at)),
                }
            }
        }
        arguments.values.sort_by_key(|(index, _)| *index);
        for (index, option) in kind.options.iter().enumerate() {
            let given = arguments.values.iter().any(|(other, _)| *other == index);
            if option.given == Given::Always && !given {
                let what = format!("`{}` is given no {}", kind.name, option.name);
                let advice = format!("write it in parentheses, as {}(64MiB)", kind.name);
                return Err(Problem::new(arguments.at, what, advice));
            }
        }
        Ok(arguments)
    }

    fn argument(&mut self, arguments: &mut Arguments) -> Result<(), Problem> {
        let kind = arguments.kind;
        let (token, at) = self.tokens.peek()?;
        let mut after = self.tokens.clone();
        after.next()?;
        if let Token::Word(word) = token
            && after.take('=')?
        {
            self.tokens = after;
            let Some(index) = kind.option(word) else {
                return Err(unknown_option(kind, word, at));
            };
            return self.value(arguments, index, at);
        }
        match token {
            Token::Word(_) | Token::Quoted(_) => {}
            Token::End => return Err(unclosed(arguments.open.clone())),
            Token::Mark(_) => return Err(no_place(kind, &token, at)),
        }
        if kind.place == Place::Around {
            if arguments.upstream.is_some() {
                return Err(second_upstream(kind, &token, at));
            }
            if let Token::Word(word) = token
                && LayerKind::named(word).is_none()
                && (kind.option(word).is_some() || word.starts_with(|c: char| c.is_ascii_digit()))
            {
                return Err(no_place(kind, &token, at));
            }
            arguments.upstream = Some(self.stack()?);
            return Ok(());
        }
        let is_given = |index: usize| arguments.values.iter().any(|(other, _)| *other == index);
        let free = kind.by_place().find(|index| !is_given(*index));
        // A file may be called as a resource is.
        let takes_any = |index: usize| {
            kind.options.get(index).is_some_and(|option| option.value == ValueKind::Path)
        };
        let opens = after.peek()?.0 == Token::Mark('(');
        if let Token::Word(word) = token
            && let Some(other) = LayerKind::named(word)
            && (opens || !free.is_some_and(takes_any))
        {
            return Err(no_upstream(kind, other, at));
        }
        match free {
            Some(index) => self.value(arguments, index, at),
            None => Err(no_place(kind, &token, at)),
        }
    }

    /// Reads the value of an option. `at` is the place of the option's name, or of the value without one.
    fn value(
        &mut self,
        arguments: &mut Arguments,
        index: usize,
        at: Range<usize>,
    ) -> Result<(), Problem> {
        let Some(option) = arguments.kind.options.get(index) else { return Ok(()) };
        if arguments.values.iter().any(|(other, _)| *other == index) {
            let what = format!("{} of `{}` is given twice", option.name, arguments.kind.name);
            return Err(Problem::new(at, what, "leave one of them out"));
        }
        let (token, at) = self.tokens.next()?;
        let quoted;
        let word = match token {
            Token::Word(word) => word,
            Token::Quoted(text) if !text.is_empty() => {
                quoted = text;
                &*quoted
            }
            token => return Err(lacks_value(option.name, &token, at)),
        };
        if word.len() > MAX_VALUE {
            let what =
                format!("{} has {} bytes, and may have {MAX_VALUE}", option.name, word.len());
            return Err(Problem::new(at, what, "write less"));
        }
        let value = Value::read(option.value, word).map_err(|(what, advice)| {
            Problem::new(at, format!("{}: {what}", option.name), advice)
        })?;
        arguments.values.push((index, value));
        Ok(())
    }
}
