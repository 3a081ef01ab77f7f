//! [`Object`]: what a pickle describes, without anything of it being made.

use std::fmt;
use std::rc::Rc;

/// The deepest nesting of tuples. A tensor needs four; dropping an object recurses this deep.
const DEEPEST: usize = 64;

#[derive(Clone)]
pub(super) enum Object<'a> {
    None,
    /// A float, bytes, a set: tensors do not need them.
    Other,
    Bool(bool),
    Int(i64),
    /// An integer of more than eight bytes, in two's complement.
    Long(&'a [u8]),
    Text(&'a str),
    Global(Global<'a>),
    /// A place in [`Pickle::lists`].
    List(usize),
    /// A place in [`Pickle::dicts`].
    Dict(usize),
    Tuple(Rc<Tuple<'a>>),
    /// A function that is not called, and its arguments.
    Call(Global<'a>, Rc<Tuple<'a>>),
    /// An object of a class, and the place in [`Pickle::dicts`] of the items that it has if it is a dictionary.
    Instance(Global<'a>, usize),
    /// The description of an object that lies outside the pickle.
    Persistent(Rc<Tuple<'a>>),
}

/// Keys and values, in their order.
pub(super) type Entries<'a> = Vec<(Object<'a>, Object<'a>)>;

/// The contents of a pickle. Dictionaries and lists are named by their places, since they can change after they were put somewhere,
/// and can even contain themselves.
pub(super) struct Pickle<'a> {
    pub(super) root: Object<'a>,
    pub(super) dicts: Vec<Entries<'a>>,
    pub(super) lists: Vec<Vec<Object<'a>>>,
    /// Every description of an object outside the pickle.
    pub(super) outside: Vec<Rc<Tuple<'a>>>,
    /// The bytes that it takes.
    pub(super) len: usize,
}

impl<'a> Pickle<'a> {
    /// The items of a dictionary, or of an object of a class that is one.
    pub(super) fn dict(&self, object: &Object<'a>) -> Option<&Entries<'a>> {
        match object {
            Object::Dict(place) | Object::Instance(_, place) => self.dicts.get(*place),
            _ => None,
        }
    }
}

impl Object<'_> {
    fn depth(&self) -> usize {
        match self {
            Self::Tuple(tuple) | Self::Call(_, tuple) | Self::Persistent(tuple) => tuple.depth,
            _ => 0,
        }
    }
}

/// A name in a Python module.
#[derive(Clone, Copy)]
pub(super) struct Global<'a> {
    pub(super) module: &'a str,
    pub(super) name: &'a str,
}

impl fmt::Display for Global<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.module, self.name)
    }
}

/// Objects that never change, no deeper than [`DEEPEST`].
pub(super) struct Tuple<'a> {
    items: Vec<Object<'a>>,
    depth: usize,
}

impl<'a> Tuple<'a> {
    pub(super) fn new(items: Vec<Object<'a>>) -> Result<Rc<Self>, String> {
        let depth = 1 + items.iter().map(Object::depth).max().unwrap_or(0);
        if depth > DEEPEST {
            return Err(format!("more than {DEEPEST} tuples inside one another"));
        }
        Ok(Rc::new(Self { items, depth }))
    }

    pub(super) fn items(&self) -> &[Object<'a>] {
        &self.items
    }
}
