package kvevents

import (
	"encoding/binary"
	"time"

	"github.com/hashicorp/go-msgpack/v2/codec"

	"github.com/skepkv/skep"
)

// medium is where a block is for a router: what vLLM's secondary tiers on storage say.
const medium = "STORAGE"

// stored is vLLM's BlockStored. Those of its fields that have a default and are not known are left out.
type stored struct {
	Type      string `codec:"type"`
	Hashes    []any  `codec:"block_hashes"` // each the parent of the next
	Parent    any    `codec:"parent_block_hash"`
	Tokens    []int  `codec:"token_ids"`  // empty
	BlockSize int    `codec:"block_size"` // in tokens, 0 where it is not known
	LoRA      any    `codec:"lora_id"`
	Medium    string `codec:"medium"`
	LoRAName  any    `codec:"lora_name"`
}

// removed is vLLM's BlockRemoved.
type removed struct {
	Type   string `codec:"type"`
	Hashes []any  `codec:"block_hashes"`
	Medium string `codec:"medium"`
}

// cleared is vLLM's AllBlocksCleared.
type cleared struct {
	Type string `codec:"type"`
}

// msgpack writes strings and bytes as MessagePack has them since 2013.
var msgpack = &codec.MsgpackHandle{WriteExt: true}

// encode is a batch as it travels, vLLM's KVEventBatch: an array of the seconds since 1970, the events and the rank of
// data parallelism, which a store has none of. It has three elements always, since some readers want the last.
func encode(at time.Time, events []any) ([]byte, error) {
	var out []byte
	seconds := float64(at.UnixMicro()) / 1e6
	err := codec.NewEncoderBytes(&out, msgpack).Encode([]any{seconds, events, nil})
	return out, err
}

// hash is a key as a router knows it: its last 64 bits as a number, or all its bytes.
func hash(k skep.Key, asBytes bool) any {
	if asBytes {
		return k[:]
	}
	return binary.BigEndian.Uint64(k[len(k)-8:])
}

// builder gathers the events of a topic.
type builder struct {
	events  []any
	at      time.Time
	last    skep.Key // the last block of the last event, where that is a stored one
	asBytes bool
	blocks  int
}

// stored tells of a block. One whose parent was told of just before goes into the same event.
func (b *builder) stored(e *skep.Event, blockSize int) {
	b.at, b.blocks = e.Time, b.blocks+1
	if n := len(b.events); n > 0 && e.Parent != nil && *e.Parent == b.last {
		if s, ok := b.events[n-1].(*stored); ok {
			s.Hashes = append(s.Hashes, hash(e.Key, b.asBytes))
			b.last = e.Key
			return
		}
	}
	s := &stored{Type: "BlockStored", Tokens: []int{}, BlockSize: blockSize, Medium: medium}
	s.Hashes = []any{hash(e.Key, b.asBytes)}
	if e.Parent != nil {
		s.Parent = hash(*e.Parent, b.asBytes)
	}
	b.events, b.last = append(b.events, s), e.Key
}

// removed tells that a block is gone. Those that go one after another share an event.
func (b *builder) removed(e *skep.Event) {
	b.at, b.blocks = e.Time, b.blocks+1
	if n := len(b.events); n > 0 {
		if r, ok := b.events[n-1].(*removed); ok {
			r.Hashes = append(r.Hashes, hash(e.Key, b.asBytes))
			return
		}
	}
	b.events = append(b.events, &removed{Type: "BlockRemoved", Hashes: []any{hash(e.Key, b.asBytes)}, Medium: medium})
}
