//! `paceline inspect`: what a model, a slice or a folder of slices holds.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

use anyhow::Context as _;
use gguf::{Manifest, Model, SliceError, SliceInfo, Source};
use indicatif::HumanBytes;

use crate::progress::Reporter;
use crate::slices;

pub(crate) fn run(path: &Path) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    if path.is_dir() {
        let manifest = Manifest::read(path)
            .with_context(|| format!("{} is a folder but holds no slices", path.display()))?;
        return Ok(folder(&mut out, path, &manifest)?);
    }
    let opened = Model::open(path)?;
    match SliceInfo::read(&opened) {
        Ok(info) => Ok(slice(&mut out, &opened, &info)?),
        Err(SliceError::NotSlice(_)) => model(&mut out, &opened),
        Err(other) => Err(other.into()),
    }
}

pub(crate) fn size(bytes: u64) -> String {
    HumanBytes(bytes).to_string()
}

fn model(out: &mut impl Write, model: &Model) -> anyhow::Result<()> {
    tensors(out, model)?;
    let source = match Source::new(model) {
        Ok(source) => source,
        Err(reason) => {
            writeln!(out, "cannot be cut:  {:#}", anyhow::Error::from(reason))?;
            return Ok(());
        }
    };
    writeln!(out, "layers:         {}", source.n_layers())?;
    if !source.nextn().is_empty() {
        writeln!(out, "drafts itself:  {} NextN blocks", source.nextn().len())?;
    }
    writeln!(out, "vocabulary:     {} tokens", source.n_vocab())?;
    let illegal: Vec<String> = (1..source.n_layers())
        .filter(|&at| source.check_boundary(at).is_err())
        .map(|at| at.to_string())
        .collect();
    let cuts = if illegal.is_empty() {
        "before any layer".to_owned()
    } else {
        format!("not before {}", illegal.join(", "))
    };
    writeln!(out, "can be cut:     {cuts}")?;
    out.flush()?;
    let mut reporter = Reporter::default();
    let identity = slices::identity(model, &mut |step, done, total| reporter.set(step, done, total))?;
    drop(reporter);
    writeln!(out, "identity:       {identity}")?;
    Ok(())
}

fn slice(out: &mut impl Write, model: &Model, info: &SliceInfo) -> io::Result<()> {
    tensors(out, model)?;
    let place = match (info.is_first(), info.is_tail()) {
        (true, true) => "the whole model",
        (true, false) => "first stage",
        (false, true) => "tail",
        (false, false) => "between first stage and tail",
    };
    writeln!(
        out,
        "slice:          layers {} to {} of {}, {place}",
        info.range.start,
        info.range.end - 1,
        info.n_layers
    )?;
    writeln!(out, "of model:       {}", info.model_id)?;
    if let Some(nextn) = info.nextn {
        let place = if nextn.is_apart { "in the file beside it" } else { "behind its layers" };
        writeln!(out, "drafts itself:  {} NextN blocks {place}", nextn.n_blocks)?;
    }
    if info.tolerance > 0.0 {
        writeln!(out, "tolerance:      logits may differ by up to {}", info.tolerance)?;
    }
    Ok(())
}

/// What every GGUF file has.
fn tensors(out: &mut impl Write, model: &Model) -> io::Result<()> {
    writeln!(out, "architecture:   {}", model.arch())?;
    if let Some(name) = model.metadata().get_str("general.name") {
        writeln!(out, "name:           {name}")?;
    }
    writeln!(out, "files:          {}", model.files().len())?;
    let mut types: BTreeMap<String, (usize, u64)> = BTreeMap::new();
    let (mut elements, mut bytes) = (0_u64, 0_u64);
    for tensor in model.tensors() {
        let entry = types.entry(format!("{:?}", tensor.ty)).or_default();
        entry.0 += 1;
        entry.1 += tensor.bytes;
        elements = elements.saturating_add(tensor.dims.iter().product());
        bytes = bytes.saturating_add(tensor.bytes);
    }
    writeln!(
        out,
        "weights:        {:.1} million in {} tensors, {}",
        elements as f64 / 1e6,
        model.tensors().len(),
        size(bytes)
    )?;
    for (name, (count, bytes)) in types {
        writeln!(out, "  {name:<12}  {count:>5} tensors, {}", size(bytes))?;
    }
    if let Some(context) = model.arch_u32("context_length") {
        writeln!(out, "trained for:    {context} positions")?;
    }
    writeln!(out, "row width:      {}", model.n_embd())
}

fn folder(out: &mut impl Write, path: &Path, manifest: &Manifest) -> io::Result<()> {
    writeln!(out, "architecture:   {}", manifest.arch)?;
    writeln!(out, "of model:       {}", manifest.model_id)?;
    writeln!(out, "layers:         {}", manifest.n_layers)?;
    if manifest.version != gguf::SLICE_VERSION {
        writeln!(
            out,
            "version:        {}, this Paceline needs {}: cut the model again",
            manifest.version,
            gguf::SLICE_VERSION
        )?;
    }
    for record in &manifest.slices {
        let file = &record.slice;
        let there = path.join(&file.file).metadata().is_ok_and(|meta| meta.len() == file.bytes);
        let note = if there { "" } else { ", MISSING or cut short" };
        writeln!(
            out,
            "  {}  layers {} to {}, {}{note}",
            file.file,
            record.start,
            record.end - 1,
            size(file.bytes)
        )?;
    }
    Ok(())
}
