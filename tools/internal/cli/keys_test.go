package cli_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What a process tells of its keys is any writer's bytes, and one of them is not to keep an operator from the others'.
func TestATimeThatNobodyCanWriteIsNobodys(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "engine.log")
	require.NoError(t, os.WriteFile(log, []byte(
		`skep: keys {"format":1,"space":"a","about":{"engine":"vllm"},"host":"h","pid":1,"seen":1764000000}`+"\n"+
			`skep: keys {"format":1,"space":"b","about":{"engine":"x"},"host":"h","pid":1,"seen":9000000000000}`+"\n"), 0o600))
	said := skepRun(t, "doctor", "keys", log, "--json")
	assert.NotEqual(t, 1, said.Code, "%s", said.Stderr)
	assert.Contains(t, said.Stdout, `"vllm"`, "what the others told")
}

// It would evict what is there.
func TestAReplayIsNotDoneOnAStoreWithData(t *testing.T) {
	t.Parallel()
	_, dir := heldIn(t, 1)
	trace := filepath.Join(t.TempDir(), "trace.jsonl")
	require.NoError(t, os.WriteFile(trace, []byte(
		`{"timestamp":0,"input_length":512,"output_length":1,"hash_ids":[1]}`+"\n"), 0o600))
	said := skepRun(t, "replay", trace, "--dir", dir, "--file-devices", "3")
	assert.Equal(t, 2, said.Code, "%s%s", said.Stdout, said.Stderr)
}
