package appender

import (
	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/commit"
	"github.com/skepkv/skep/store/internal/crypt"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// Block is a block that is to be written: its payload, and what the catalog and the index are to know of it.
type Block struct {
	commit.Block
	Parts  []skep.Part   // the bytes, in manifest order; nil once they are on the drives
	Given  []skep.Part   // where others can write those: Parts is a copy, of each append's own. Else nil
	Loan   *Loan         // of the memory they lie in; nil: nobody waits for it
	Key    *crypt.Secret // what it is to be encrypted with; nil: it is not
	copies []layout.Location
	tries  int                  // how often it was put elsewhere
	clear  []segment.RecordPart // of its record, before that was sealed
	cipher []skep.Part          // what goes to the drives
	// Of a block that is moved, from elsewhere.
	Moved bool
	Group *space.Group // of what the mover moves: its group, which is pinned
	Anew  bool         // it starts where its chain says, not on the device it started on
}

// Again is the block of a record that lies at l, to be written again elsewhere.
func Again(fp index.Fingerprint, rec *segment.Record, l layout.Location) *Block {
	return &Block{Moved: true, Block: commit.Block{FP: fp, Record: *rec, Pages: int(rec.Pages), Size: rec.Bytes(),
		From: l, Result: &skep.PutResult{}}}
}

// SetParts points a block's parts into its stored form.
func (in *Block) SetParts(mem []byte) {
	in.Parts = make([]skep.Part, len(in.Record.Parts))
	var off int64
	for i := range in.Record.Parts {
		p := &in.Record.Parts[i]
		in.Parts[i].Name = p.Name
		if p.Inline != nil {
			in.Parts[i].Bytes = p.Inline
			continue
		}
		in.Parts[i].Bytes = mem[off : off+p.Size]
		off += int64(layout.PagesOf(p.Size)) * layout.PageSize
	}
}
