package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzBodies: whatever body a call of the API comes with, the answer is JSON, no 500, and no more
// memory is made of it than sixteen times its length: it is read once into a buffer that grows, a
// key is 67 bytes of it and 32 of a list that grows, and another 32 for the store.
func FuzzBodies(f *testing.F) {
	x := newFixture(f, false)
	var posts []operation
	for _, op := range operations {
		if op.method == http.MethodPost {
			posts = append(posts, op)
		}
	}
	key := fmt.Sprintf("%q", x.key.String())
	for i := range posts {
		f.Add(byte(i), fmt.Sprintf(`{"namespace": %d, "keys": [%s,%s]}`, x.space.ID, key, key))
		f.Add(byte(i), `{"tenant": "a"}`)
		f.Add(byte(i), `{}`)
		f.Add(byte(i), `{"namespace": 1, "keys": ["`+strings.Repeat("\\u0030", 64)+`", null, 1, {}]} {}`)
		f.Add(byte(i), strings.Repeat(`{"keys":[`, 99))
	}
	f.Fuzz(func(t *testing.T, n byte, body string) {
		op := posts[int(n)%len(posts)]
		path := strings.NewReplacer("{job}", "scrub", "{action}", "start", "{namespace}", "7").Replace(op.path)
		x.log.Reset()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		w := x.ask(op.method, path, tokenOperator, body)
		runtime.ReadMemStats(&after)
		const slack = 128 << 10 // of a request without a body, and of measuring
		if made := int(after.TotalAlloc - before.TotalAlloc); made > 16*len(body)+slack {
			t.Fatalf("%d bytes made of a body of %d", made, len(body))
		}
		require.NotEqual(t, http.StatusInternalServerError, w.Code, w.Body.String())
		require.True(t, json.Valid(w.Body.Bytes()), w.Body.String())
	})
}

// A body as large as they come, of the shortest keys, is refused before a list is made of it.
//
// Alone: memory of the whole process is measured.
func TestManyShortKeysTakeNoMemory(t *testing.T) {
	f := newFixture(t, false)
	body := fmt.Sprintf(`{"namespace": %d, "keys": [""%s]}`, f.space.ID, strings.Repeat(`,""`, MaxBody/3-32))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	w := f.ask("POST", "/api/v1/lookup", tokenOperator, body)
	runtime.ReadMemStats(&after)
	require.Equal(t, http.StatusBadRequest, w.Code)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(6*MaxBody))
}
