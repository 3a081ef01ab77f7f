//! `--device`

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeviceArg {
    Auto,
    Cpu,
    Cuda(usize),
    Metal(usize),
}

impl std::str::FromStr for DeviceArg {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let (name, ordinal) = match s.split_once(':') {
            None => (s, 0),
            Some((name, n)) => (name, n.parse().map_err(|_| format!("`{n}` is not a device number"))?),
        };
        match (name, s.contains(':')) {
            ("auto", false) => Ok(Self::Auto),
            ("cpu", false) => Ok(Self::Cpu),
            ("cuda", _) => Ok(Self::Cuda(ordinal)),
            ("metal", _) => Ok(Self::Metal(ordinal)),
            _ => Err("expected auto, cpu, cuda, cuda:N, metal or metal:N".into()),
        }
    }
}
