[
  inputs: ["{mix,.formatter}.exs", "{lib,mix,test,bench}/**/*.{ex,exs}"]
]
