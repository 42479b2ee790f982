//! The accelerator catalogue: one canonical name per model *and* memory, and who makes it.
//!
//! Job files, configurations and drivers spell one device in many ways; placement compares canonical
//! names only. A name that is not in the catalogue is kept as it is, so any accelerator can be
//! scheduled by its name. Form factors (SXM, PCIe) are not part of a name; where one matters, use a label.

use crate::base::Bytes;

/// Bytes of a name.
pub const NAME_BYTES_MAX: usize = 63;
/// What a name must be.
pub const NAME: &str = "must be an accelerator name such as A100-80G, H100 or MI300X: at most 63 characters of A-Z, a-z, 0-9, ' ', '.', '_', '-', '+', '/' and '()'";

/// Who makes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vendor {
    /// NVIDIA.
    Nvidia,
    /// AMD.
    Amd,
    /// Huawei.
    Huawei,
    /// Intel.
    Intel,
}

/// A name that cannot name an accelerator. Nothing changed; give another.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not an accelerator name: {NAME}")]
pub struct GpuNameError(String);

/// One line of the catalogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Model {
    /// Name without memory, `A100`.
    pub head: &'static str,
    /// Memories it is sold with, in GB as in its name. With one, the canonical name has none.
    pub gb: &'static [u32],
    /// Who makes it.
    pub vendor: Vendor,
}

const fn model(head: &'static str, gb: &'static [u32], vendor: Vendor) -> Model {
    Model { head, gb, vendor }
}

use Vendor::{Amd, Huawei, Intel, Nvidia};

/// All models whose memory and maker are known.
pub const CATALOGUE: &[Model] = &[
    model("A100", &[40, 80], Nvidia),
    model("A800", &[40, 80], Nvidia),
    model("A10", &[24], Nvidia),
    model("A10G", &[24], Nvidia),
    model("A16", &[16], Nvidia),
    model("A2", &[16], Nvidia),
    model("A30", &[24], Nvidia),
    model("A40", &[48], Nvidia),
    model("B100", &[192], Nvidia),
    model("B200", &[180], Nvidia),
    model("B300", &[288], Nvidia),
    model("GB200", &[186], Nvidia),
    model("GH200", &[96], Nvidia),
    model("H100", &[80], Nvidia),
    model("H100-NVL", &[94], Nvidia),
    model("H20", &[96], Nvidia),
    model("H200", &[141], Nvidia),
    model("H200-NVL", &[141], Nvidia),
    model("H800", &[80], Nvidia),
    model("L4", &[24], Nvidia),
    model("L20", &[48], Nvidia),
    model("L40", &[48], Nvidia),
    model("L40S", &[48], Nvidia),
    model("K80", &[12], Nvidia),
    model("M60", &[8], Nvidia),
    model("P4", &[8], Nvidia),
    model("P40", &[24], Nvidia),
    model("P100", &[16], Nvidia),
    model("T4", &[16], Nvidia),
    model("V100", &[16, 32], Nvidia),
    model("RTX-2080-Ti", &[11], Nvidia),
    model("RTX-3090", &[24], Nvidia),
    model("RTX-4090", &[24], Nvidia),
    model("RTX-5090", &[32], Nvidia),
    model("RTX-A4000", &[16], Nvidia),
    model("RTX-A5000", &[24], Nvidia),
    model("RTX-A6000", &[48], Nvidia),
    model("RTX-6000-Ada", &[48], Nvidia),
    model("MI100", &[32], Amd),
    model("MI210", &[64], Amd),
    model("MI250", &[128], Amd),
    model("MI250X", &[128], Amd),
    model("MI300A", &[128], Amd),
    model("MI300X", &[192], Amd),
    model("MI325X", &[256], Amd),
    model("MI355X", &[288], Amd),
    model("Ascend-310P", &[24], Huawei),
    model("Ascend-910A", &[32], Huawei),
    model("Ascend-910B", &[64], Huawei),
    model("Ascend-910C", &[128], Huawei),
    model("Gaudi2", &[96], Intel),
    model("Gaudi3", &[128], Intel),
];

/// Other spellings of a head, after normalising.
const ALIASES: &[(&str, &str)] = &[
    ("RTX4090", "RTX-4090"),
    ("4090", "RTX-4090"),
    ("RTX3090", "RTX-3090"),
    ("RTX5090", "RTX-5090"),
    ("RTX2080TI", "RTX-2080-Ti"),
    ("RTX-2080TI", "RTX-2080-Ti"),
    ("A4000", "RTX-A4000"),
    ("A5000", "RTX-A5000"),
    ("A6000", "RTX-A6000"),
    ("RTXA6000", "RTX-A6000"),
    ("RTX-6000-ADA-GENERATION", "RTX-6000-Ada"),
    ("RTX6000-ADA", "RTX-6000-Ada"),
    ("GRACE-HOPPER", "GH200"),
    ("MI250X-MI250", "MI250X"),
    ("ASCEND910", "Ascend-910A"),
    ("ASCEND-910", "Ascend-910A"),
    ("ASCEND910A", "Ascend-910A"),
    ("910A", "Ascend-910A"),
    ("ASCEND910B", "Ascend-910B"),
    ("910B", "Ascend-910B"),
    ("ASCEND910C", "Ascend-910C"),
    ("910C", "Ascend-910C"),
    ("ASCEND310P", "Ascend-310P"),
    ("GAUDI-2", "Gaudi2"),
    ("GAUDI-3", "Gaudi3"),
];

/// Parts of a product string that say nothing about the model: maker, line, board and memory kind.
const NOISE: &[&str] = &[
    "NVIDIA", "TESLA", "GEFORCE", "QUADRO", "AMD", "INSTINCT", "HUAWEI", "INTEL", "HABANA", "SXM", "SXM2",
    "SXM3", "SXM4", "SXM5", "SXM6", "PCIE", "OAM", "HBM2", "HBM2E", "HBM3", "HBM3E", "DGXS", "FHHL",
];

/// A name taken apart.
struct Parsed {
    known: Option<&'static Model>,
    gb: Option<u32>,
    kept: String,
}

fn parse(text: &str) -> Result<Parsed, GpuNameError> {
    let kept = text.trim();
    let good = kept.len() <= NAME_BYTES_MAX
        && kept.starts_with(|c: char| c.is_ascii_alphanumeric())
        && kept.chars().all(|c| c.is_ascii_alphanumeric() || " ._-+/()".contains(c));
    if !good {
        return Err(GpuNameError(super::input::show(text)));
    }
    let upper = kept.to_ascii_uppercase();
    let tokens: Vec<&str> = upper.split([' ', '-', '_', '/', '(', ')']).filter(|t| !t.is_empty()).collect();
    let mut head: Vec<&str> = Vec::new();
    let mut gb = None;
    for token in tokens {
        let memory = token
            .strip_suffix("GIB")
            .or_else(|| token.strip_suffix("GB"))
            .or_else(|| token.strip_suffix('G'));
        match memory.and_then(|n| n.parse::<u32>().ok()) {
            // A second memory makes the name unclear: it is then kept as it is.
            Some(n) if gb.is_none() && !head.is_empty() => gb = Some(n),
            _ if NOISE.contains(&token) => {}
            _ => head.push(token),
        }
    }
    let head = head.join("-");
    let head = ALIASES.iter().find(|(alias, _)| *alias == head).map_or(head.as_str(), |(_, name)| *name);
    let known = CATALOGUE.iter().find(|m| m.head.eq_ignore_ascii_case(head));
    // The figure in this product's name is the CPU's memory.
    if gb == Some(480) && known.is_some_and(|m| m.head == "GH200") {
        gb = None;
    }
    Ok(Parsed { known, gb, kept: kept.to_owned() })
}

impl Parsed {
    /// The memory that the name says or implies.
    fn exact_gb(&self) -> Option<u32> {
        match (self.gb, self.known) {
            (Some(gb), _) => Some(gb),
            (None, Some(Model { gb: [only], .. })) => Some(*only),
            _ => None,
        }
    }

    fn canonical(self) -> String {
        let Some(model) = self.known else { return self.kept };
        match self.exact_gb() {
            Some(gb) if model.gb != [gb] => format!("{}-{gb}G", model.head),
            _ => model.head.to_owned(),
        }
    }
}

/// The canonical name of what was written or reported: `NVIDIA A100-SXM4-80GB` is `A100-80G`.
/// A plain `A100` stays `A100` (either memory); an unknown name stays as it is, trimmed.
pub fn canonical(text: &str) -> Result<String, GpuNameError> {
    parse(text).map(Parsed::canonical)
}

/// The canonical name of a device whose memory was measured: a plain `A100` becomes exact.
/// A driver reports a little less than the name says, so the nearest memory sold is taken.
pub fn canonical_measured(text: &str, memory: Bytes) -> Result<String, GpuNameError> {
    let mut parsed = parse(text)?;
    if let Some(model) = parsed.known
        && parsed.exact_gb().is_none()
        && memory > Bytes(0)
    {
        let measured = memory.0 as f64 / 1e9;
        let off = |gb: u32| (f64::from(gb) * 1.0737 - measured).abs() / f64::from(gb);
        parsed.gb =
            model.gb.iter().copied().min_by(|a, b| off(*a).total_cmp(&off(*b))).filter(|gb| off(*gb) < 0.2);
    }
    Ok(parsed.canonical())
}

/// Will a device of model `have` do for a job that asks for `wanted`? Equal models do; a plain
/// family (`A100`) takes every memory; a stated memory takes only that one, never an unknown one.
pub fn matches(wanted: &str, have: &str) -> bool {
    let (Ok(wanted), Ok(have)) = (parse(wanted), parse(have)) else { return false };
    match (wanted.known, have.known) {
        (Some(w), Some(h)) if w.head == h.head => {
            wanted.exact_gb().is_none_or(|gb| have.exact_gb() == Some(gb))
        }
        (None, None) => wanted.kept.eq_ignore_ascii_case(&have.kept),
        _ => false,
    }
}

/// Memory of one device, where the name says it.
pub fn memory(name: &str) -> Option<Bytes> {
    let parsed = parse(name).ok()?;
    parsed.known?;
    parsed.exact_gb().map(|gb| Bytes::gib(gb.into()))
}

/// Power of one device under load in watts: of its data sheet, or 350 where that is not known.
pub fn watts(name: &str) -> u32 {
    const WATTS: &[(&str, u32)] = &[
        ("A100", 400),
        ("A800", 400),
        ("A10", 150),
        ("A10G", 150),
        ("A2", 60),
        ("A30", 165),
        ("A40", 300),
        ("B200", 1_000),
        ("GB200", 1_200),
        ("GH200", 700),
        ("H100", 700),
        ("H20", 400),
        ("H200", 700),
        ("H800", 700),
        ("L4", 72),
        ("L40", 300),
        ("L40S", 350),
        ("T4", 70),
        ("V100", 300),
        ("P100", 250),
        ("RTX-4090", 450),
        ("MI250X", 560),
        ("MI300X", 750),
        ("Ascend-910A", 310),
        ("Ascend-910B", 400),
        ("Gaudi2", 600),
        ("Gaudi3", 900),
    ];
    let head = parse(name).ok().and_then(|p| p.known).map(|m| m.head);
    WATTS.iter().find(|(known, _)| Some(*known) == head).map_or(350, |(_, watts)| *watts)
}

/// Who makes it, where it is known.
pub fn vendor(name: &str) -> Option<Vendor> {
    parse(name).ok()?.known.map(|m| m.vendor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_meet_in_one_name() {
        for (text, name) in [
            ("NVIDIA A100-SXM4-80GB", "A100-80G"),
            ("NVIDIA A100 80GB PCIe", "A100-80G"),
            ("NVIDIA-A100-PCIE-40GB", "A100-40G"),
            ("A100-SXM4-40GB", "A100-40G"),
            ("a100-80gb", "A100-80G"),
            ("A100", "A100"),
            ("A800-40G", "A800-40G"),
            ("NVIDIA H200", "H200"),
            ("NVIDIA H100 80GB HBM3", "H100"),
            ("H100-80G", "H100"),
            ("NVIDIA H100 PCIe", "H100"),
            ("NVIDIA H100 NVL", "H100-NVL"),
            ("H100-96G", "H100-96G"),
            ("Tesla P100-PCIE-16GB", "P100"),
            ("Tesla P100-PCIE-12GB", "P100-12G"),
            ("Tesla V100-SXM2-16GB", "V100-16G"),
            ("Tesla V100-DGXS-32GB", "V100-32G"),
            ("Tesla T4", "T4"),
            ("NVIDIA L4", "L4"),
            ("NVIDIA L40", "L40"),
            ("NVIDIA L40S", "L40S"),
            ("NVIDIA A10", "A10"),
            ("NVIDIA A10G", "A10G"),
            ("NVIDIA GeForce RTX 4090", "RTX-4090"),
            ("RTX 4090", "RTX-4090"),
            ("rtx4090", "RTX-4090"),
            ("NVIDIA RTX 6000 Ada Generation", "RTX-6000-Ada"),
            ("NVIDIA GH200 480GB", "GH200"),
            ("NVIDIA GH200 144G HBM3e", "GH200-144G"),
            ("AMD Instinct MI250X", "MI250X"),
            ("AMD Instinct MI250X/MI250", "MI250X"),
            ("AMD Instinct MI300X OAM", "MI300X"),
            ("Ascend910B", "Ascend-910B"),
            ("Ascend 910B", "Ascend-910B"),
            // Different devices that only look alike stay apart.
            ("NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 Laptop GPU"),
            ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "NVIDIA A100-SXM4-80GB MIG 1g.10gb"),
            ("TPU-v5e", "TPU-v5e"),
            ("Ascend-910B2", "Ascend-910B2"),
            ("80G", "80G"),
        ] {
            assert_eq!(canonical(text).as_deref(), Ok(name), "{text}");
        }
    }

    #[test]
    fn every_canonical_name_is_its_own() {
        for m in CATALOGUE {
            for gb in m.gb {
                let name = canonical(&format!("{} {gb}GB", m.head)).expect("good");
                assert_eq!(canonical(&name).as_deref(), Ok(name.as_str()));
                assert_eq!(memory(&name), Some(Bytes::gib((*gb).into())), "{name}");
                assert_eq!(vendor(&name), Some(m.vendor));
                for other in CATALOGUE.iter().filter(|o| o.head != m.head) {
                    assert!(
                        !matches(&name, other.head) && !matches(other.head, &name),
                        "{name} {}",
                        other.head
                    );
                }
            }
        }
    }

    #[test]
    fn a_job_gets_what_it_asked_for() {
        for (wanted, have) in [
            ("A100", "A100-40G"),
            ("A100", "A100-80G"),
            ("A100", "A100"),
            ("A100", "A100-64G"),
            ("A100-80G", "NVIDIA A100-SXM4-80GB"),
            ("V100", "V100-32G"),
            ("H100", "NVIDIA H100 80GB HBM3"),
            ("tpu-v5e", "TPU-v5e"),
        ] {
            assert!(matches(wanted, have), "{wanted} by {have}");
        }
        for (wanted, have) in [
            ("A100-80G", "A100-40G"),
            ("A100-40G", "A100-80G"),
            ("A100-80G", "A100"),
            ("L4", "L40"),
            ("L40", "L4"),
            ("L40", "L40S"),
            ("A10", "A100-80G"),
            ("A100", "A800-80G"),
            ("H100", "H100-NVL"),
            ("H100", "H100-96G"),
            ("P100", "P100-12G"),
            ("TPU-v5e", "TPU-v5p"),
            ("A100", "A100-SXM4-80GB MIG 1g.10gb"),
            ("", ""),
        ] {
            assert!(!matches(wanted, have), "{wanted} by {have}");
        }
    }

    #[test]
    fn measured_memory_makes_a_name_exact() {
        let exact = |name, mib| canonical_measured(name, Bytes::mib(mib)).expect("good");
        assert_eq!(exact("NVIDIA A100", 81_920), "A100-80G");
        assert_eq!(exact("NVIDIA A100", 40_536), "A100-40G");
        assert_eq!(exact("Tesla V100", 16_160), "V100-16G");
        assert_eq!(exact("NVIDIA A100-SXM4-80GB", 40_536), "A100-80G", "the name has the word");
        assert_eq!(exact("A100", 10_000), "A100", "a part of one is not one");
        assert_eq!(exact("NVIDIA H200", 143_771), "H200");
        assert_eq!(exact("A100", 0), "A100");
    }

    #[test]
    fn names_are_bounded() {
        for bad in ["", " ", "-A100", "A100\nx", "A100;rm", "A\u{7}", &"A".repeat(64), "Ä100"] {
            assert!(canonical(bad).is_err(), "{bad:?}");
            assert!(!matches(bad, bad), "{bad:?}");
        }
    }
}
