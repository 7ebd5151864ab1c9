package gpu

import "github.com/prometheus/client_golang/prometheus"

var (
	descBlocks   = prometheus.NewDesc("skep_gpu_tier_blocks", "Blocks in GPU memory, own and lent.", []string{"memory"}, nil)
	descRoom     = prometheus.NewDesc("skep_gpu_tier_room_blocks", "Blocks there is room for in GPU memory, own and lent, and single-layer blocks (layers).", []string{"memory"}, nil)
	descHits     = prometheus.NewDesc("skep_gpu_tier_hits_total", "Blocks that were copied out of GPU memory.", nil, nil)
	descDrops    = prometheus.NewDesc("skep_gpu_tier_drops_total", "Blocks that left GPU memory, for lent memory or for good.", nil, nil)
	descFailed   = prometheus.NewDesc("skep_gpu_tier_failed", "1 when GPU memory is out of use because a device failed.", nil, nil)
	descHeld     = prometheus.NewDesc("skep_gpu_tier_held_blocks", "Blocks that prompts being computed hold.", nil, nil)
	descUncopied = prometheus.NewDesc("skep_gpu_tier_uncopied_bytes", "Bytes being computed in lent memory that are not stored behind yet.", nil, nil)
	descMoved    = prometheus.NewDesc("skep_gpu_tier_relocated_total", "Blocks that were copied elsewhere because a border moved over them, to GPU memory or, for want of room, to the host's.", []string{"to"}, nil)
	descPinned   = prometheus.NewDesc("skep_gpu_pinned_bytes", "Pinned host memory that restores land in, by use.", []string{"use"}, nil)
	descUnpinned = prometheus.NewDesc("skep_gpu_unpinned_total", "Pieces that landed elsewhere because pinned memory had no room.", nil, nil)
)

// Describe implements prometheus.Collector.
func (s *Store) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (s *Store) Collect(out chan<- prometheus.Metric) {
	u := s.Usage()
	put := func(d *prometheus.Desc, kind prometheus.ValueType, v int64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, kind, float64(v), labels...)
	}
	put(descBlocks, prometheus.GaugeValue, int64(u.Local), "own")
	put(descBlocks, prometheus.GaugeValue, int64(u.Lent), "lent")
	put(descRoom, prometheus.GaugeValue, int64(u.LocalRoom), "own")
	put(descRoom, prometheus.GaugeValue, int64(u.LentRoom), "lent")
	put(descRoom, prometheus.GaugeValue, int64(u.LayerRoom), "layers")
	put(descHits, prometheus.CounterValue, u.Hits)
	put(descDrops, prometheus.CounterValue, u.Drops)
	put(descHeld, prometheus.GaugeValue, int64(u.Held))
	put(descUncopied, prometheus.GaugeValue, u.Uncopied)
	put(descMoved, prometheus.CounterValue, u.Relocated, "gpu")
	put(descMoved, prometheus.CounterValue, u.Rescued, "host")
	failed := int64(0)
	if u.Failed != nil {
		failed = 1
	}
	put(descFailed, prometheus.GaugeValue, failed)
	put(descPinned, prometheus.GaugeValue, u.Landing, "landing")
	put(descPinned, prometheus.GaugeValue, u.Pinned-u.Landing, "free")
	put(descUnpinned, prometheus.CounterValue, u.Unpinned)
}
