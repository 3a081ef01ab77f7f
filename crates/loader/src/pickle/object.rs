//! [`Object`]: what a pickle describes. Shared objects stay shared, so that a copy costs one pointer.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

/// How deep tuples may nest. A tensor needs four; dropping an object recurses this deep.
const DEEPEST: usize = 64;

#[derive(Clone)]
pub(super) enum Object<'a> {
    /// `None`, a bool, a float, or a dictionary inside another object: tensors do not need them.
    Other,
    Int(i64),
    Text(&'a str),
    Global(Global<'a>),
    /// A list without its items, which tensors do not need.
    List,
    Tuple(Rc<Tuple<'a>>),
    /// The memo has it, too, while it is filled.
    Dict(Rc<RefCell<Entries<'a>>>),
    /// A function that is not called, and its arguments.
    Call(Global<'a>, Rc<Tuple<'a>>),
    /// The description of an object that lies outside the pickle.
    Persistent(Rc<Tuple<'a>>),
}

/// Keys and values, in their order.
pub(super) type Entries<'a> = Vec<(Object<'a>, Object<'a>)>;

impl Object<'_> {
    /// The form of this object inside another one. A dictionary can change after it was put somewhere, and can even
    /// contain itself, so it is dropped. Tuples never change, and without dictionaries only tuples nest.
    pub(super) fn inside(self) -> Self {
        if let Self::Dict(_) = self { Self::Other } else { self }
    }

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
        let items: Vec<_> = items.into_iter().map(Object::inside).collect();
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
