[
  inputs: ["{mix,.formatter}.exs", "{lib,mix,test,bench,fuzz}/**/*.{ex,exs}"]
]
