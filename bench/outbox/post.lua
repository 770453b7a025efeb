-- The request that wrk sends. Arguments, after "--": the body, and headers.
function init(args)
	wrk.method = "POST"
	wrk.body = args[1]
	for i = 2, #args do
		local name, value = args[i]:match("^(.-): (.*)$")
		wrk.headers[name] = value
	end
end
