package ingest

import (
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/internal/appender"
	"github.com/skepkv/skep/store/internal/puts"
	"github.com/skepkv/skep/store/memory"
)

// Block is one block on its way in.
type Block struct {
	appender.Block
	held   []memory.Held    // its parts in the DRAM tier
	shared []*memory.Buffer // references to them, while it is written from there
	flight *puts.Flight
}

// toWrite is what is to be written of blocks.
func toWrite(list []*Block) []*appender.Block {
	out := make([]*appender.Block, len(list))
	for i, in := range list {
		out[i] = &in.Block
	}
	return out
}

// unshare lets go of the memory that was kept for writing from.
func (in *Block) unshare() {
	memory.ReleaseAll(in.shared)
	in.shared = nil
}

// Waits is what the admission filter knows of a block.
func (in *Block) Waits() index.WaitingBlock {
	return index.WaitingBlock{FP: in.FP, Parent: in.Parent, HasParent: in.HasParent, Bytes: in.Size,
		Partial: in.Record.ValidTokens != 0}
}
