package appender

import (
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/segio"
)

// Sum computes the granule checksums of part i.
func (in *Block) Sum(ns *namespaces.Namespace, i int) { in.sumInto(ns, i, in.Record.Parts[i].Sums) }

func (in *Block) sumInto(ns *namespaces.Namespace, i int, sums []uint64) {
	p := &in.Record.Parts[i]
	g, err := layout.GranulesOf(ns.Info.Shape, p.Name, p.Size)
	if err != nil {
		return // describe has been through here
	}
	of := segio.Sums{Granules: g, Seed: in.Record.Seed(i), Sums: sums}
	of.Compute(in.Parts[i].Bytes)
}
