//go:build linux

package apart

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/hostile"
)

const (
	chainBlocks = 24 // two groups, of 16
	chainsEach  = 3  // of a client, in each namespace
)

// spaces are the namespaces; the first is durable.
var spaces = []string{"durable", "cache"}

// block is what a client knows of a block.
type block struct {
	Acked bool // it was acknowledged, and not asked to be deleted since
	Maybe bool // it may be there
	Late  bool // a put that was made while something was wrong may be carried out yet
	Undo  bool // a deletion may
}

// chain is a chain of blocks that one client puts and deletes.
type chain struct {
	Space  string
	Of     string // the client
	Number int
	Blocks []block

	keys []skep.Key
}

func (x *chain) durable() bool { return x.Space == spaces[0] }

// known makes the keys, which follow from the names.
func (x *chain) known() {
	var parent *skep.Key
	for at := range x.Blocks {
		k := skep.ChainKey(parent, []uint32{uint32(x.Of[len(x.Of)-1]), uint32(len(x.Space)), uint32(x.Number), uint32(at)})
		x.keys, parent = append(x.keys, k), &k
	}
}

func (x *chain) String() string { return fmt.Sprintf("%s's chain %d, %s", x.Of, x.Number, x.Space) }

// book is a client's chains.
type book []*chain

func newBook(of string) (b book) {
	for _, space := range spaces {
		for n := range chainsEach {
			x := &chain{Space: space, Of: of, Number: n, Blocks: make([]block, chainBlocks)}
			x.known()
			b = append(b, x)
		}
	}
	return b
}

// readBook reads what a client wrote at its end.
func readBook(path string) (b book, err error) {
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &b)
	}
	for _, x := range b {
		x.known()
	}
	return b, err
}

func (b book) write(path string) error {
	text, err := json.Marshal(b)
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}

// each goes over all blocks.
func (b book) each(do func(*block)) {
	for _, x := range b {
		for i := range x.Blocks {
			do(&x.Blocks[i])
		}
	}
}

// payload begins with what tells hostile clients that it is another's.
func payload(k skep.Key) []byte {
	return append(bytes.Clone(hostile.Secret), storetest.Payload(k, skep.PartKV, 3000+17*int(k[0]))...)
}
