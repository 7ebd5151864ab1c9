package memory

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
)

func TestLimitOfControlGroups(t *testing.T) {
	t.Parallel()
	const (
		v1 = "30 25 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n" +
			"31 25 0:27 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n"
		v2    = "32 25 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
		mount = "sys/fs/cgroup/"
		none  = "9223372036854771712\n"
	)
	for _, c := range []struct {
		name, groups, mounts string
		files                map[string]string
		want                 int64
	}{
		{"no control groups", "", "", nil, 0},
		{"version 1", "2:cpu:/a\n3:memory:/a\n", v1, map[string]string{"memory/a/memory.limit_in_bytes": "536870912\n",
			"memory/memory.limit_in_bytes": none}, 512 << 20},
		{"version 1, no limit", "3:memory:/a\n", v1, map[string]string{"memory/a/memory.limit_in_bytes": none}, 0},
		{"version 1, the group above", "3:memory:/a/b\n", v1, map[string]string{"memory/a/b/memory.limit_in_bytes": none,
			"memory/a/memory.limit_in_bytes": "1048576\n"}, 1 << 20},
		{"version 1 beside 2 without the controller", "3:memory:/a\n0::/x\n", v1 + v2,
			map[string]string{"memory/a/memory.limit_in_bytes": "4096\n"}, 4096},
		{"version 1 in a container, its part mounted", "3:memory:/docker/1\n",
			"31 25 0:27 /docker/1 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
			map[string]string{"memory/memory.limit_in_bytes": "8192\n"}, 8192},
		{"version 2", "0::/user/app\n", v2, map[string]string{"user/app/memory.max": "max\n",
			"user/memory.max": "1073741824\n"}, 1 << 30},
		{"version 2, no limit", "0::/app\n", v2, map[string]string{"app/memory.max": "max\n"}, 0},
		{"version 2 in a namespace of its own", "0::/\n", v2, map[string]string{"memory.max": "12288\n"}, 12288},
		{"version 2, a group outside of the namespace", "0::/../other\n", v2, map[string]string{"memory.max": "12288\n"}, 12288},
		{"what nobody can read", "0:\nx\n0::/app\n", "1 2\n - \n" + v2, map[string]string{"app/memory.max": "many\n"}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			root := fstest.MapFS{"proc/self/mountinfo": {Data: []byte(c.mounts)}}
			if c.groups != "" {
				root["proc/self/cgroup"] = &fstest.MapFile{Data: []byte(c.groups)}
			}
			for name, text := range c.files {
				root[mount+name] = &fstest.MapFile{Data: []byte(text)}
			}
			assert.Equal(t, c.want, limitIn(root))
		})
	}
}

func TestWithin(t *testing.T) {
	t.Parallel()
	assert.EqualValues(t, 1<<20, Within(1<<20, 0, 4), "no limit")
	assert.EqualValues(t, 1<<19, Within(1<<20, 1<<21, 4))
	assert.EqualValues(t, 1<<20, Within(1<<20, 1<<30, 4))
	assert.EqualValues(t, 60<<10, Within(1<<20, 256<<10-1, 4), "whole pages")
}
