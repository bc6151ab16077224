-- wrk at a rate: each connection pauses before a request, for 0 to twice so many ms.
local mean

function init(args)
  mean = tonumber(args[1])
  math.randomseed(7)
end

function delay()
  return math.random(0, math.floor(2 * mean + 0.5))
end
