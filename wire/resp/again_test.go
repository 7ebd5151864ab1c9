package resp

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
)

// What was told as set stays when the next SET of its key, sent along with it, is refused: small values and large ones,
// in SETs and in one MSET.
func TestASetThatWasToldStaysWhenTheNextIsRefused(t *testing.T) {
	t.Parallel()
	mem := memstore.New(memstore.Options{})
	defer mem.Close()
	st := &wrapped{Store: mem}
	st.put = func(r *skep.PutRequest) ([]skep.PutResult, error) {
		out := make([]skep.PutResult, len(r.Blocks))
		for i, b := range r.Blocks {
			h, err := decodeHead(b.Parts[0].Bytes)
			if err != nil || h.size != 7 {
				one, err := mem.Put(t.Context(), &skep.PutRequest{Scope: r.Scope, Blocks: r.Blocks[i : i+1]})
				if err != nil {
					return nil, err
				}
				out[i] = one[0]
				continue
			}
			out[i] = skep.PutResult{Outcome: skep.Declined, Reason: skep.Full}
		}
		return out, nil
	}
	f := serve(t, st, Options{})
	for name, first := range map[string]string{"small": "first", "large": string(randomBytes(2*pieceBytes + 3))} {
		c := f.dial()
		in := bytes.Join([][]byte{encode("SET", name, first), encode("SET", name, "refused"), encode("SET", name+"2", "other")}, nil)
		sent := make(chan error, 1)
		go func() {
			_, err := c.Write(in)
			sent <- err
		}()
		assert.Equal(t, "+OK", c.reply(), name)
		assert.Regexp(t, "^-OOM", c.reply(), name)
		assert.Equal(t, "+OK", c.reply(), name)
		require.NoError(t, <-sent)
		f.server.reap.sweep()
		assert.Equal(t, quoted([]byte(first)), c.do("GET", name), name)
	}
	c := f.dial()
	assert.Regexp(t, "^-OOM", c.do("MSET", "m", "first", "m", "refused"))
	assert.Equal(t, `"first"`, c.do("GET", "m"))
}
