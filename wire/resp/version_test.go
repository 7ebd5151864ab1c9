package resp

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Replies have what a server of the version has that clients are told: they take fields by their place, and by name.
func TestRepliesFitTheVersionTold(t *testing.T) {
	t.Parallel()
	f := serve(t, nil, Options{})
	two, three := f.dial(), f.dial()
	require.Contains(t, three.do("HELLO", "3"), `"version" "7.0.0"`)
	for name := range commands {
		row := two.do("COMMAND", "INFO", name)
		assert.NotContains(t, row, "nil", name)
		spec := `*["flags" *[`
		if commands[name].first == 0 {
			spec = "*[] *[] *[]"
		}
		assert.Contains(t, row, spec, name)
	}
	assert.Equal(t, `*[*["mset" -3 ~[+write +denyoom] 1 -1 2 ~[+@slow +@write] *[] *[%["flags" ~[+RW] "begin_search" `+
		`%["type" "index" "spec" %["index" 1]] "find_keys" %["type" "range" "spec" %["lastkey" -1 "keystep" 2 "limit" 0]]]] *[]]]`,
		three.do("COMMAND", "INFO", "MSET"))
	for c, proto := range map[*client]string{two: "resp=2", three: "resp=3"} {
		line := c.do("CLIENT", "INFO")
		var names []string
		for _, field := range strings.Fields(strings.Trim(line, "\"")) {
			name, _, _ := strings.Cut(field, "=")
			names = append(names, name)
		}
		assert.Equal(t, strings.Fields("id addr laddr fd name age idle flags db sub psub ssub multi qbuf qbuf-free argv-mem multi-mem rbs rbp "+
			"obl oll omem tot-mem events cmd user redir resp"), names)
		assert.Contains(t, line, proto)
		assert.Contains(t, line, "cmd=client")
	}
	require.Equal(t, "+OK", three.do("SELECT", "3"))
	require.Equal(t, "+RESET", three.do("RESET"))
	assert.Contains(t, three.do("CLIENT", "INFO"), " db=0 ")
	assert.Contains(t, three.do("CLIENT", "INFO"), " resp=2")
}
