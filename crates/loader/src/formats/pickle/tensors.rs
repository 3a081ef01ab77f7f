//! Tensors as a pickle describes them: views of storages, by the names of the dictionary that they lie in.

use super::object::{Object, Pickle, Tuple};
use crate::stored::Encoding;
use safetensors::Dtype;
use std::ops::Range;

/// GPT-2's buffers have four dimensions.
const MOST_DIMENSIONS: usize = 8;
/// The depth at which dictionaries of tensors are looked for, as in `{"state": {"model": {..}}}`.
const DEEPEST: usize = 3;
/// A tensor that repeats numbers, by strides of 0, may have this many whatever its storage has.
const REPEATED: usize = 1 << 16;

/// A storage by its key, and the kind of its numbers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Storage<'a> {
    pub(super) key: &'a str,
    pub(super) encoding: Encoding,
    /// The bytes of one number.
    pub(super) size: usize,
    /// The numbers before the part that this description is of: files of the oldest PyTorch have such parts.
    pub(super) first: usize,
    /// The number of elements in the whole storage, by the pickle.
    pub(super) len: Option<usize>,
}

/// A tensor as a view of a storage, from `_rebuild_tensor_v2(storage, offset, size, stride, ..)`.
pub(super) struct View<'a> {
    /// `None` for a kind of tensor that has none or is not read.
    pub(super) storage: Option<Storage<'a>>,
    pub(super) encoding: Encoding,
    offset: usize,
    pub(super) shape: Vec<usize>,
    /// `None` if it lies in one piece.
    pub(super) strides: Option<Vec<usize>>,
}

impl View<'_> {
    /// The bytes of the file that the tensor lies in, for a storage at `storage`.
    pub(super) fn range(&self, size: usize, storage: &Range<usize>) -> Result<Range<usize>, String> {
        let outside = || format!("shape {:?} at offset {} is outside its storage", self.shape, self.offset);
        let numbers = self.shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).ok_or_else(outside)?;
        let held = storage.len() / size.max(1);
        if self.strides.is_some() && numbers > held.max(REPEATED) {
            return Err(format!(
                "shape {:?} repeats the {held} numbers of its storage too often",
                self.shape
            ));
        }
        let span = match &self.strides {
            Some(strides) if numbers > 0 => {
                let steps = self.shape.iter().zip(strides).map(|(&d, &s)| (d - 1).checked_mul(s));
                steps.into_iter().try_fold(1usize, |sum, n| sum.checked_add(n?)).ok_or_else(outside)?
            }
            _ => numbers,
        };
        let start = self.offset.checked_mul(size).and_then(|n| n.checked_add(storage.start));
        let end = span.checked_mul(size).zip(start).and_then(|(len, start)| start.checked_add(len));
        match (start, end) {
            (Some(start), Some(end)) if end <= storage.end => Ok(start..end),
            _ => Err(outside()),
        }
    }
}

/// The keys that lead to a dictionary, and each of its tensors by its name.
type TensorDict<'a> = (String, Vec<(&'a str, View<'a>)>);

/// Lists the dictionaries that hold tensors, the outermost first.
pub(super) fn dicts<'a>(pickle: &Pickle<'a>) -> Result<Vec<TensorDict<'a>>, String> {
    let mut found = vec![];
    let mut level = vec![(String::new(), &pickle.root)];
    for _ in 0..DEEPEST {
        let mut below = vec![];
        for (path, object) in level {
            let Some(entries) = pickle.dict(object) else { continue };
            let mut tensors = vec![];
            for (key, value) in entries {
                let &Object::Text(name) = key else { continue };
                if pickle.dict(value).is_some() {
                    below.push((if path.is_empty() { name.into() } else { format!("{path}.{name}") }, value));
                } else if let Some(view) = view(value).map_err(|e| format!("tensor {name}: {e}"))? {
                    tensors.push((name, view));
                }
            }
            if !tensors.is_empty() {
                found.push((path, tensors));
            }
        }
        level = below;
    }
    Ok(found)
}

/// `None` for an object that is not a tensor.
fn view<'a>(value: &Object<'a>) -> Result<Option<View<'a>>, String> {
    let Object::Call(function, args) = value else { return Ok(None) };
    let unread = |kind| {
        Ok(Some(View {
            storage: None,
            encoding: Encoding::Other(kind),
            offset: 0,
            shape: vec![],
            strides: None,
        }))
    };
    match (function.name, args.items()) {
        (
            "_rebuild_tensor" | "_rebuild_tensor_v2",
            [Object::Persistent(storage), offset, size, stride, ..],
        ) => placed(storage_of(storage)?, offset, size, stride).map(Some),
        // The last arguments are requires_grad, hooks, dtype and metadata.
        (
            "_rebuild_tensor_v3",
            [Object::Persistent(storage), offset, size, stride, _, _, Object::Global(dtype), ..],
        ) => {
            let storage = storage_of(storage)?;
            let (encoding, width) = dtype_of(dtype.name);
            placed(Storage { encoding, size: width, ..storage }, offset, size, stride).map(Some)
        }
        ("_rebuild_parameter" | "_rebuild_parameter_with_state", [tensor, ..]) => view(tensor),
        // A subclass of a tensor: the function and the arguments that rebuild the tensor itself.
        ("_rebuild_from_type_v2", [Object::Global(inner), _, Object::Tuple(args), ..]) => {
            view(&Object::Call(*inner, std::rc::Rc::clone(args)))
        }
        ("_rebuild_sparse_tensor" | "_rebuild_sparse_csr_tensor", _) => unread("sparse"),
        ("_rebuild_qtensor", _) => unread("quantized by PyTorch"),
        ("_rebuild_nested_tensor", _) => unread("nested"),
        ("_rebuild_meta_tensor_no_storage", _) => unread("meta (a shape without numbers)"),
        ("_rebuild_tensor" | "_rebuild_tensor_v2" | "_rebuild_tensor_v3" | "_rebuild_parameter", _) => {
            Err(format!("the arguments of {function} are not what torch.save writes"))
        }
        (name, _) if name.starts_with("_rebuild_") => unread("of a kind that is not read"),
        _ => Ok(None),
    }
}

fn placed<'a>(
    storage: Storage<'a>,
    offset: &Object,
    size: &Object,
    stride: &Object,
) -> Result<View<'a>, String> {
    let (shape, strides) = layout(size, stride)?;
    let offset = number(offset)?.checked_add(storage.first).ok_or("its offset is too large")?;
    Ok(View { encoding: storage.encoding, storage: Some(storage), offset, shape, strides })
}

/// The storage of `('storage', torch.FloatStorage, key, location, element count)`, to which the oldest files add the place of a
/// part of it: `(key, offset, size)`.
pub(super) fn storage_of<'a>(described: &Tuple<'a>) -> Result<Storage<'a>, String> {
    let [_, Object::Global(class), Object::Text(key), _, rest @ ..] = described.items() else {
        return Err("its storage's description is not what torch.save writes".into());
    };
    let (encoding, size) = match class.name {
        // Of bytes: `_rebuild_tensor_v3` says what they mean.
        "UntypedStorage" => (Encoding::Plain(Dtype::U8), 1),
        name => dtype_of(name.strip_suffix("Storage").ok_or_else(|| format!("{class} is not a storage"))?),
    };
    let len = rest.first().map(number).transpose()?;
    let first = match rest.get(1) {
        Some(Object::Tuple(part)) => part.items().get(1).map(number).transpose()?.unwrap_or(0),
        _ => 0,
    };
    Ok(Storage { key, encoding, size, first, len })
}

/// The kind of numbers that a storage's class or a dtype names, and the bytes of one.
fn dtype_of(name: &str) -> (Encoding, usize) {
    let dtype = match name {
        "Float" | "float32" => Dtype::F32,
        "Double" | "float64" => Dtype::F64,
        "Half" | "float16" => Dtype::F16,
        "BFloat16" | "bfloat16" => Dtype::BF16,
        "Byte" | "uint8" => Dtype::U8,
        "Char" | "int8" => Dtype::I8,
        "Bool" | "bool" => Dtype::BOOL,
        "Short" | "int16" => Dtype::I16,
        "Int" | "int32" => Dtype::I32,
        "Long" | "int64" => Dtype::I64,
        "uint16" => Dtype::U16,
        "uint32" => Dtype::U32,
        "uint64" => Dtype::U64,
        "float8_e4m3fn" => Dtype::F8_E4M3,
        "float8_e5m2" => Dtype::F8_E5M2,
        "ComplexFloat" | "complex64" => return (Encoding::Other("complex"), 8),
        "ComplexDouble" | "complex128" => return (Encoding::Other("complex"), 16),
        "QInt32" => return (Encoding::Other("quantized by PyTorch"), 4),
        _ => return (Encoding::Other("of a kind that is not read"), 1),
    };
    (Encoding::Plain(dtype), dtype.bitsize() / 8)
}

/// The shape, and the strides of a tensor that does not lie in one piece.
fn layout(size: &Object, stride: &Object) -> Result<(Vec<usize>, Option<Vec<usize>>), String> {
    let shape = numbers(size)?;
    let strides = numbers(stride)?;
    if shape.len() != strides.len() {
        return Err("it has more dimensions than strides, or fewer".into());
    }
    let mut expected = 1usize;
    // The stride of a dimension of 1 is never used, nor is any of a tensor without numbers.
    let in_one_piece = shape.contains(&0)
        || shape.iter().zip(&strides).rev().filter(|(d, _)| **d != 1).all(|(&d, &s)| {
            let fits = s == expected;
            expected = expected.saturating_mul(d);
            fits
        });
    Ok((shape, (!in_one_piece).then_some(strides)))
}

fn numbers(object: &Object) -> Result<Vec<usize>, String> {
    match object {
        Object::Tuple(sizes) if sizes.items().len() <= MOST_DIMENSIONS => {
            sizes.items().iter().map(number).collect()
        }
        _ => Err(format!("expected a tuple of at most {MOST_DIMENSIONS} sizes")),
    }
}

pub(super) fn number(object: &Object) -> Result<usize, String> {
    let &Object::Int(n) = object else { return Err("expected a size of at most 8 bytes".into()) };
    usize::try_from(n).map_err(|_| format!("expected a size, got {n}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tensor's shape, its strides, and the strides that it keeps if it does not lie in one piece.
    #[test]
    fn only_a_tensor_in_one_piece_needs_no_strides() -> Result<(), String> {
        let tuple = |sizes: &[i64]| -> Result<Object<'static>, String> {
            Ok(Object::Tuple(Tuple::new(sizes.iter().map(|&n| Object::Int(n)).collect())?))
        };
        for (shape, strides) in [
            (&[2, 3][..], &[3, 1][..]),
            (&[2, 3, 4], &[12, 4, 1]),
            // The stride of a dimension of one is never used.
            (&[1, 3], &[99, 1]),
            (&[1], &[99]),
            (&[], &[]),
            (&[2; 8], &[128, 64, 32, 16, 8, 4, 2, 1]),
            (&[2, 0, 3], &[7, 7, 7]),
        ] {
            let (read, gaps) = layout(&tuple(shape)?, &tuple(strides)?)?;
            assert_eq!((read.len(), gaps), (shape.len(), None), "{shape:?} {strides:?}");
        }
        for (shape, strides) in [
            (&[2, 3][..], &[4, 1][..]), // rows with a gap between them
            (&[2, 3], &[2, 1]),         // rows over one another
            (&[2, 3], &[1, 2]),         // transposed
            (&[2, 3], &[0, 1]),         // one row twice
            (&[2, 3], &[6, 2]),         // every other number
            (&[2], &[2]),
            (&[2, 3, 4], &[13, 4, 1]),
            (&[2, 3, 4], &[15, 5, 1]),
        ] {
            assert!(layout(&tuple(shape)?, &tuple(strides)?)?.1.is_some(), "{shape:?} {strides:?}");
        }
        assert!(layout(&tuple(&[2, 3])?, &tuple(&[1])?).is_err());
        let nine = layout(&tuple(&[1; 9])?, &tuple(&[1; 9])?).expect_err("nine dimensions");
        assert_eq!(nine, "expected a tuple of at most 8 sizes");
        Ok(())
    }

    #[test]
    fn a_view_never_leaves_its_storage_and_repeats_little() {
        let at = |offset, shape: &[usize], strides: Option<&[usize]>| {
            let strides = strides.map(<[usize]>::to_vec);
            let encoding = Encoding::Plain(Dtype::F32);
            View { storage: None, encoding, offset, shape: shape.to_vec(), strides }.range(4, &(100..124))
        };
        assert_eq!(at(0, &[2, 3], None), Ok(100..124));
        assert_eq!(at(1, &[2, 2], Some(&[1, 3])), Ok(104..124));
        assert_eq!(at(1, &[2, 0], Some(&[1, 3])), Ok(104..104));
        assert_eq!(at(5, &[REPEATED], Some(&[0])), Ok(120..124));
        assert!(at(5, &[REPEATED + 1], Some(&[0])).is_err_and(|e| e.contains("too often")));
        assert!(at(2, &[2, 2], Some(&[1, 3])).is_err_and(|e| e.contains("outside its storage")));
        assert!(at(1, &[2, 3], None).is_err_and(|e| e.contains("outside its storage")));
        for huge in [usize::MAX, usize::MAX / 2] {
            assert!(at(huge, &[2], None).is_err());
            assert!(at(0, &[huge, huge], None).is_err());
            assert!(at(0, &[2, 2], Some(&[huge, huge])).is_err());
        }
    }
}
