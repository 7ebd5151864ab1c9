package ingest

import (
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/appender"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/segment"
)

// Prepare checks every block before anything is stored, so that bad input changes
// nothing. Where a namespace's blocks are encrypted with a key for the first time, the drives are told. Where they have
// no room for that, all blocks are declined, and none is left to put. REQUIRES: r.Validate.
func (w *Writer) Prepare(ctx context.Context, ns *namespaces.Namespace, t namespaces.Tag, r *skep.PutRequest,
	results []skep.PutResult) ([]*Block, error) {
	const op = "put"
	spec := &ns.Info.NamespaceSpec
	list := make([]Block, len(r.Blocks))
	out := make([]*Block, len(r.Blocks))
	for i := range r.Blocks {
		b, in := &r.Blocks[i], &list[i]
		out[i] = in
		m := make(skep.Manifest, len(b.Parts))
		for j, p := range b.Parts {
			if p.Name == "" {
				p.Name = skep.PartKV
			}
			m[j] = skep.PartSpec{Name: p.Name, Size: int64(len(p.Bytes))}
		}
		parent, depth := r.Behind(spec, i)
		as := skep.BeginRequest{Parent: parent, Depth: depth, Key: b.Key, Name: b.Name, ValidTokens: b.ValidTokens,
			Replaces: b.Replaces, Manifest: m}
		if err := w.Describe(op, ns, t, in, &as); err != nil {
			return nil, err
		}
		in.Parts = b.Parts
		in.Result = &results[i]
	}
	if spec.Chained && r.Parent != nil {
		e, ok := w.Index.Resolve(out0(out).Parent)
		if len(out) > 0 && ok && int(e.Depth)+1 != r.Depth {
			return nil, skep.Invalidf(op, "depth", r.Depth, int(e.Depth)+1)
		}
	}
	switch err := w.seal(ctx, op, ns, out...); {
	case appender.Declines(err):
		w.Appends.Decline(toWrite(out), skep.KindOf(err))
		return nil, nil
	case err != nil:
		return nil, err
	}
	return out, nil
}

// seal gives blocks that were described the key that they are to be encrypted with. Errors: why it is not at hand, and
// why the drives cannot be told that it is in use.
func (w *Writer) seal(ctx context.Context, op string, ns *namespaces.Namespace, list ...*Block) error {
	key, err := w.Keys.Sealer(ctx, op, ns)
	if err != nil {
		return err
	}
	for _, in := range list {
		in.Key = key
	}
	return nil
}

func out0(in []*Block) *Block {
	if len(in) == 0 {
		return &Block{}
	}
	return in[0]
}

// Describe fills in, a new block, from its identity and its manifest, whose parts have names. seal follows. Error:
// Invalid.
func (w *Writer) Describe(op string, ns *namespaces.Namespace, t namespaces.Tag, in *Block, r *skep.BeginRequest) error {
	spec := &ns.Info.NamespaceSpec
	if err := skep.ValidateBlock(op, spec, r.Depth, r.ValidTokens, r.Key, r.Parent, r.Name, r.Manifest); err != nil {
		return err
	}
	rec := &in.Record
	rec.Instance, rec.NamespaceID, rec.SaltTag = ns.Instance, uint32(ns.Info.ID), segment.SaltTag(t)
	rec.Key, rec.Depth = r.Key, uint32(r.Depth)
	if r.ValidTokens < spec.Shape.BlockTokens {
		rec.ValidTokens = uint32(r.ValidTokens)
	}
	if t != (namespaces.Tag{}) {
		rec.Flags |= segment.RecordSalted
	}
	if spec.Class == skep.Durable {
		rec.Flags |= segment.RecordDurable
	}
	rec.Name = append([]byte(nil), r.Name...)
	in.FP = w.Names.Fingerprint(ns.Instance, t, r.Key)
	if r.Parent != nil {
		p := *r.Parent
		rec.Parent = &p
		in.HasParent, in.Parent = true, w.Names.Fingerprint(ns.Instance, t, p)
	}
	if r.Replaces != nil {
		k := *r.Replaces
		rec.Replaces = &k
		fp := w.Names.Fingerprint(ns.Instance, t, k)
		in.Replaces = &fp
	}
	rec.Parts = make([]segment.RecordPart, len(r.Manifest))
	for i, p := range r.Manifest {
		if want := ns.PartSize(p.Name); want >= 0 && p.Size != want {
			return skep.Invalidf(op, "size of part "+p.Name, p.Size, want)
		}
		g, err := layout.GranulesOf(ns.Info.Shape, p.Name, p.Size)
		if err != nil {
			return err
		}
		rec.Parts[i] = segment.RecordPart{Name: p.Name, Size: p.Size, Sums: make([]uint64, g.N())}
		in.Size += p.Size
		in.Pages += layout.PagesOf(p.Size)
	}
	if in.Inlined() {
		in.Pages = 0
	}
	rec.Pages = uint32(in.Pages)
	return nil
}
