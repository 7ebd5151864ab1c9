package commandtest

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMisfitsAreFound(t *testing.T) {
	t.Parallel()
	var s map[string]any
	require.NoError(t, json.Unmarshal([]byte(`{"type":"object","required":["n","list"],"properties":{
		"n":{"type":"integer"},"share":{"type":"number"},
		"list":{"type":["array","null"],"items":{"type":"object","required":["x"],"properties":{"x":{"type":"string"}}}},
		"by":{"type":["object","null"],"additionalProperties":{"type":"integer"}}}}`), &s))
	for text, want := range map[string][]string{
		`{"n":1,"share":1,"list":[{"x":"a"}],"by":{"a":2}}`: nil,
		`{"n":1,"share":0.5,"list":null,"by":null}`:         nil,
		`{"n":1.5,"list":[]}`:                               {".n is number, not integer"},
		`{"n":1}`:                                           {".list is missing"},
		`{"n":1,"list":[],"m":1}`:                           {".m is not in the schema"},
		`{"n":1,"list":[{"x":"a"},{"x":true}]}`:             {".list[1].x is boolean, not string"},
		`{"n":1,"list":[],"by":{"a":"b"}}`:                  {".by.a is string, not integer"},
		`[]`:                                                {" is array, not object"},
	} {
		var v any
		require.NoError(t, json.Unmarshal([]byte(text), &v))
		assert.Equal(t, want, misfits("", s, v), text)
	}
}
