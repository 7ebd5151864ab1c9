package observe

import (
	"encoding/binary"
	"errors"
	"math"

	"github.com/skepkv/skep"
)

// AskWear asks the drive that path is, or whose file system path lies on, how worn it is.
func AskWear(path string) skep.WearStats {
	page, err := smartLog(path)
	if err != nil {
		return skep.WearStats{Why: err.Error()}
	}
	return parseSmart(page)
}

var errNoSmart = errors.New("no NVMe drive under this device")

// smartPage is the size of NVMe's SMART / health information log.
const smartPage = 512

// parseSmart reads the log page (NVM Express Base Specification 2.0, figure 207):
//
//	  3       available spare, percent
//	  5       percentage used, of the life the maker promises
//	 48..63   data units written, of 512,000 bytes
//	128..143  power-on hours
func parseSmart(p []byte) skep.WearStats {
	if len(p) < smartPage {
		return skep.WearStats{Why: "short health log"}
	}
	// 128-bit counters: what passes 64 bits no drive has lived to see.
	units, hours := binary.LittleEndian.Uint64(p[48:]), binary.LittleEndian.Uint64(p[128:])
	const unit = 512_000
	w := skep.WearStats{Known: true, PercentUsed: float64(p[5]), Spare: float64(p[3]),
		BytesWritten: int64(min(units, math.MaxInt64/unit)) * unit, PowerOnHours: int64(min(hours, math.MaxInt64))}
	if w.PercentUsed > 0 {
		w.DaysLeft = max(0, 100-w.PercentUsed) / w.PercentUsed * float64(w.PowerOnHours) / 24
	}
	return w
}
